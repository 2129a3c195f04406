"""Write the generated files; those that are there already and say the same stay as they are."""

from scripts.reference import generated_files

for path, text in generated_files().items():
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
