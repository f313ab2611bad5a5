"""Values: JSON encoding and schemas, durations, rates, names, redaction. Importing the package loads none of them."""
