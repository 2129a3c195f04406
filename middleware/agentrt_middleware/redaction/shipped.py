"""The detectors that ship.

Their patterns look at nothing outside of a match, and a validator that takes none of a match would take no beginning of
it either. So what redaction leaves holds nothing that it would find.
"""

from collections.abc import Sequence

from agentrt_middleware.redaction.detectors import Detector, MatchValidator, Part
from agentrt_middleware.redaction.pattern_syntax import parse_pattern


class _Shipped(Detector):
    """A detector whose patterns are parsed when it is first used."""

    def __init__(self, name: str, *forms: tuple[str, str, MatchValidator | None]) -> None:
        super().__init__(name, None)
        self._forms = forms

    def __repr__(self) -> str:
        return self.name

    @property
    def parts(self) -> Sequence[Part]:
        if not self._parts:
            parts = []
            for pattern, tail, validate in self._forms:
                stop = parse_pattern(f"[^{tail}]") if tail else None
                parts.append(Part(parse_pattern(pattern), stop, bool(tail), validate))
            self._parts = parts
        return self._parts


class _ShippedBetween(Detector):
    def __init__(self, name: str, begin: str, end: str) -> None:
        super().__init__(name, None)
        self._begin, self._end = begin, end

    def __repr__(self) -> str:
        return self.name

    @property
    def parts(self) -> Sequence[Part]:
        self._parts = self._parts or [Part(parse_pattern(self._begin), parse_pattern(self._end))]
        return self._parts


# By the digits that a number begins with; of several, the longest prefix counts.
_CARD_LENGTHS: dict[str, Sequence[int]] = {
    "4": (13, 16, 19),  # Visa
    **{str(prefix): (16,) for prefix in (*range(51, 56), *range(2221, 2721))},  # Mastercard
    **{str(prefix): range(16, 20) for prefix in (*range(2200, 2205), 62, 65, 6011, *range(644, 650))},
    **{str(prefix): range(16, 20) for prefix in range(3528, 3590)},  # JCB
    **{str(prefix): (15,) for prefix in (34, 37)},  # American Express
    **{str(prefix): range(14, 20) for prefix in (*range(300, 306), 3095, 36, 38, 39)},  # Diners Club
    **{str(prefix): range(13, 20) for prefix in (50, *range(56, 62), 63, 64, *range(66, 70))},  # Maestro
}
_DOUBLED = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)  # the sum of the digits of a digit's double


def _card(text: str) -> int | None:
    """Return how much of the text is a card number: as much as possible, unless it could end at a separator."""
    digits = [(int(character), place) for place, character in enumerate(text, 1) if character.isdigit()]
    prefix = "".join(str(digit) for digit, _ in digits[:4])
    lengths = next((_CARD_LENGTHS[prefix[:n]] for n in (4, 3, 2, 1) if prefix[:n] in _CARD_LENGTHS), ())
    ends = []
    for length in lengths:
        if length <= len(digits):
            number = [digit for digit, _ in digits[length - 1 :: -1]]
            if (sum(number[::2]) + sum(_DOUBLED[digit] for digit in number[1::2])) % 10 == 0:
                ends.append(digits[length - 1][1])
    # Another number may follow, and one in ten longer rows has a right checksum by chance.
    at_separators = [end for end in ends if text[end : end + 1] in (" ", "-")]
    return min(at_separators) if at_separators else max(ends, default=None)


_COUNTRIES_BY_LENGTH = {
    15: "NO",
    16: "BE BI",
    18: "DK FI FK FO GL NL SD",
    19: "MK SI",
    20: "AT BA EE KZ LT LU MN XK",
    21: "CH HN HR LI LV",
    22: "BG BH CR DE GB GE IE ME RS VA",
    23: "AE GI IL IQ OM SO TL",
    24: "AD CZ DZ ES MD PK RO SA SE SK TN VG",
    25: "LY PT ST",
    26: "IS TR",
    27: "BF BJ CF CG CI CM DJ FR GA GQ GR IT KM MC MG MR SM TD",
    28: "AL AZ BY CY DO GT HU LB MA ML NE NI PL SN SV TG",
    29: "BR EG PS QA UA",
    30: "JO KW MU YE",
    31: "MT SC",
    32: "LC",
    33: "RU",
}
_IBAN_LENGTHS = {country: length for length, names in _COUNTRIES_BY_LENGTH.items() for country in names.split()}


def _iban(text: str) -> int | None:
    """Return how much of the text is an account number: its country says how long it is, and there is a checksum."""
    length = _IBAN_LENGTHS.get(text[:2].upper())
    places = [place for place, character in enumerate(text, 1) if character.isalnum()]
    if length is None or len(places) < length:
        return None
    number = "".join(text[place - 1] for place in places[:length]).upper()
    remainder = int("".join(str(int(character, 36)) for character in number[4:] + number[:4])) % 97
    return places[length - 1] if remainder == 1 else None


def _with_digit(text: str) -> int | None:
    """Take what has a digit in it: the words of a language have none, and nearly every key has."""
    return len(text) if any(character.isdigit() for character in text) else None


# Of a longer name in front of the "@" the end is enough: what is left of it reaches nobody.
EMAIL = _Shipped("EMAIL", (r"[A-Za-z0-9._%+\-]{1,64}@[A-Za-z0-9.\-]{1,190}\.[A-Za-z]{2,24}", "", None))
"""Addresses of e-mail."""

CARD = _Shipped("CARD", (r"[2-6](?:[ \-]?\d){12,18}", "", _card))
"""Numbers of payment cards, with their checksum, also inside of a longer row of digits; spaces and hyphens may part
them."""

IBAN = _Shipped("IBAN", (r"[A-Za-z]{2}\d{2}(?:[ \-]?[A-Za-z0-9]){11,30}", "", _iban))
"""Numbers of bank accounts, with their checksum; spaces and hyphens may part them."""

_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_GROUP = "[0-9A-Fa-f]{1,4}"
# With `::`, where `std::vector` would be an address as well, only the ranges that are in use.
_FIRST_GROUP = "(?:[23][0-9A-Fa-f]{3}|[fF](?:[cCdDfF][0-9A-Fa-f]|[eE][89a-fA-F])[0-9A-Fa-f])"

IP = _Shipped(
    "IP",
    (rf"{_OCTET}(?:\.{_OCTET}){{3}}", "", None),
    (rf"{_GROUP}(?::{_GROUP}){{7}}|{_FIRST_GROUP}(?::{_GROUP}){{0,6}}::(?:{_GROUP}(?::{_GROUP}){{0,6}})?", "", None),
)
"""Addresses of the internet, of both versions."""

PHONE = _Shipped(
    "PHONE", (r"\+[1-9](?:[ ().\-/]{0,2}\d){7,14}|\(\d{3}\) ?\d{3}[ .\-]\d{4}|\d{3}[.\-]\d{3}[.\-]\d{4}", "", None)
)
"""Telephone numbers that begin with "+", and those of North America: `(212) 555-0100`, `212-555-0100`."""

_KEY = r"A-Za-z0-9_\-"
# What follows these, of whatever length, belongs to the key.
_KEY_HEADS = (
    r"gh[pousr]_[A-Za-z0-9]{20}",
    r"github_pat_[A-Za-z0-9_]{20}",
    rf"glpat-[{_KEY}]{{16}}",
    r"xox[abeoprs]-[A-Za-z0-9\-]{10}",
    rf"AIza[{_KEY}]{{30}}",
    r"(?:AKIA|ASIA)[A-Z0-9]{16}",
    r"(?:hf_|npm_|gsk_|xai-|r8_|whsec_|tvly-|pplx-)[A-Za-z0-9]{20}",
    rf"pypi-[{_KEY}]{{20}}",
    r"[prs]k_(?:live|test)_[A-Za-z0-9]{10}",
    rf"SG\.[{_KEY}]{{16,32}}\.[{_KEY}]{{16}}",
    rf"ya29\.[{_KEY}]{{20}}",
)

API_KEY = _Shipped(
    "API_KEY",
    ("|".join(_KEY_HEADS), _KEY, None),
    (rf"sk-[{_KEY}]{{20,200}}", _KEY, _with_digit),
    (rf"eyJ[{_KEY}]{{10}}", rf"{_KEY}.=", None),  # JSON in base64: the beginning of a signed token
    (r"(?i:bearer|basic) [A-Za-z0-9._~+/=\-]{16,200}", r"A-Za-z0-9._~+/=\-", _with_digit),
)
"""Keys of well-known services, by the letters that they begin with, signed tokens, and what stands in the headers of
requests after "Bearer" or "Basic"."""

PRIVATE_KEY = _ShippedBetween(
    "PRIVATE_KEY",
    "-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----",
    "-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----",
)
"""Private keys in PEM, such as those of SSH, TLS and PGP."""
