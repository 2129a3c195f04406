"""Input typed by the user: lines, pasted text, and the fields of a form."""
