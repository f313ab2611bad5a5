"""What a terminal shows in the end, of what was written to it: enough of one for lines that are drawn again."""

import re

_PART = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|(\r\n|\n|\r)|([^\x1b\r\n]+)")


def picture(written: str) -> str:
    lines = [""]
    row = column = 0
    for numbers, command, newline, text in _PART.findall(written):
        if newline == "\r":
            column = 0
        elif newline:
            row, column = row + 1, 0
            lines.extend([""] * (row + 1 - len(lines)))
        elif command == "A":
            row = max(0, row - int(numbers or 1))
        elif command == "K":
            lines[row] = ""
        elif text:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + text + line[column + len(text) :]
            column += len(text)
    return "\n".join(line.rstrip() for line in lines).rstrip("\n")
