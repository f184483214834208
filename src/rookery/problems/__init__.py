"""What is solved: problems as direction fields, constraint sets, and problems with known answers."""
