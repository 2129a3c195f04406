"""The runner of many machines: DBOS over PostgreSQL decides who runs, and a file for each thing that it does not do."""
