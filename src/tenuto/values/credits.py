"""Amounts of credits: whole millionths inside, decimal text outside, never floats."""

import re
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Final, TypeAlias

from tenuto.errors import InvalidInput

Amount: TypeAlias = str | int | Decimal

CREDIT: Final = 1_000_000
MOST: Final = (1 << 53) - 1  # what JSON numbers and both databases hold exactly
_TEXT = re.compile(r"[0-9]{1,10}(?:\.[0-9]{1,6})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditPolicy:
    """How a deployment counts credits. Amounts are millionths. With `enabled` false, nothing is reserved."""

    enabled: bool = True
    per_1000_tokens: int = CREDIT
    min_reserve: int = 10 * CREDIT

    def estimate(self, max_tokens: int) -> int:
        """Returns what each attempt of a run with so many tokens reserves."""
        return max(self.min_reserve, cost_of_tokens(max_tokens, self.per_1000_tokens))


ON = CreditPolicy()


def millionths(amount: Amount, pointer: str = "/amount", *, zero: bool = False) -> int:
    """Returns an amount in millionths. Raises `InvalidInput` with the code `invalid_amount`."""
    text = format(amount, "f") if isinstance(amount, Decimal) else str(amount)
    if isinstance(amount, bool | float) or _TEXT.fullmatch(text) is None:
        raise _invalid(amount, pointer)
    found = int(Decimal(text) * CREDIT)
    if found > MOST or (found == 0 and not zero):
        raise _invalid(amount, pointer)
    return found


def _invalid(amount: object, pointer: str) -> InvalidInput:
    text = (
        f"{amount!r} is not an amount of credits: give a decimal number above 0 as text, such as '12.5', "
        "with at most six places"
    )
    return InvalidInput.at(pointer, "invalid_amount", text)


def decimal_text(amount: int) -> str:
    """Returns an amount as text, without trailing zeros."""
    sign, whole, rest = "-" if amount < 0 else "", *divmod(abs(amount), CREDIT)
    places = f"{rest:06d}".rstrip("0")
    return f"{sign}{whole}.{places}" if places else f"{sign}{whole}"


def cost_of_tokens(tokens: int, per_1000: int) -> int:
    """Returns the cost of tokens in millionths, rounded up. `per_1000` is the rate, in millionths per 1,000 tokens."""
    return int((Decimal(tokens) * per_1000 / 1_000).to_integral_value(rounding=ROUND_CEILING))
