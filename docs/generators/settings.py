"""`reference/settings.md`: every setting, its variable, its default."""

from tenuto.settings import Settings

from .source import NOTE

OPENING = """\
# Settings

Read from the environment, then from `tenuto.toml` in the current folder (or the file that `TENUTO_CONFIG` names), then
from the defaults. In the file the names are those of the first column; in the environment lists are separated by
commas. `tenuto doctor` prints what is in force, and where each came from. The fields of `jwt_issuers` are told in
[the guide](../guides/http.md#tokens-of-your-own-issuer).

| name | variable | default | what it is |
|---|---|---|---|
"""


def page() -> str:
    rows = [
        f"| `{s.name}` | `{s.variable}` | {_code(s.value)} | {s.doc.replace('|', '/')} |\n" for s in Settings().told()
    ]
    return f"{NOTE}\n{OPENING}{''.join(rows)}"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""
