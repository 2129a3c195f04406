"""Write the table of known models."""

from scripts.catalog import TABLE, table_text

TABLE.write_text(table_text(), encoding="utf-8")
