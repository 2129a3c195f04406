"""Files for mypy and pyright, which tests/test_typing.py runs over them; nothing here is executed."""
