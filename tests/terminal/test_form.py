"""Forms that a person fills in, field by field."""

from datetime import date
from enum import Enum
from typing import Literal

import pytest
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from agentrt.errors import InvalidInputError
from tests.loop.keyboard import Keyboard, asked


async def form_of(model: type[BaseModel], *lines: str) -> tuple[dict[str, object] | None, str]:
    """Fill in a form with these lines, none too many, and return its values and what was shown."""
    keyboard = Keyboard("said", *lines)
    values = (await asked(keyboard.input(), model)).structured_input
    assert keyboard.lines.empty()
    return values, keyboard.screen


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Street(BaseModel):
    name: str
    number: int


async def test_every_kind_of_field_is_asked_for_and_read():
    class Form(BaseModel):
        name: str = Field(description="What they\n are called")
        age: int
        height: float
        born: date
        tall: bool
        colour: Colour
        level: Literal[1, 2, "many"]
        tags: list[str]
        street: Street
        counts: dict[str, int]

    values, screen = await form_of(
        Form,
        "5",
        " 41 ",
        "1.85",
        "2020-02-29",
        "yes",
        "green",
        "2",
        '["a", "b"]',
        '{"name": "High", "number": 7}',
        '{"a": 1}',
    )
    assert values == {
        "name": "5",
        "age": 41,
        "height": 1.85,
        "born": "2020-02-29",
        "tall": True,
        "colour": "green",
        "level": 2,
        "tags": ["a", "b"],
        "street": {"name": "High", "number": 7},
        "counts": {"a": 1},
    }
    assert screen.removeprefix("> ").split(": ") == [
        "name (text) - What they are called",
        "age (integer)",
        "height (number)",
        "born (date)",
        "tall (yes or no)",
        'colour ("red" or "green")',
        'level (1 or 2 or "many")',
        "tags (JSON list)",
        'street (JSON object with "name", "number")',
        "counts (JSON object)",
        "",
    ]


async def test_an_empty_line_takes_the_default_or_leaves_the_field_out():
    class Form(BaseModel):
        a: int = 3
        b: int | None
        c: list[int] | None = None
        d: list[str] = Field(default_factory=lambda: ["x"])
        e: Colour = Colour.RED

    values, screen = await form_of(Form, "", "", "", "", "")
    assert values == {"a": 3, "b": None, "c": None, "d": ["x"], "e": "red"}
    assert "a (integer, default 3): b (integer, may be left out): c (JSON list, may be left out): " in screen
    assert 'd (JSON list, has a default): e ("red" or "green", default "red"): ' in screen


async def test_a_field_that_may_be_left_out_can_be_given():
    class Form(BaseModel):
        b: int | None
        c: list[int] | None = None

    assert (await form_of(Form, "5", "[1, 2]"))[0] == {"b": 5, "c": [1, 2]}


async def test_a_field_without_a_default_needs_an_answer():
    class Form(BaseModel):
        name: str

    values, screen = await form_of(Form, "", "  ", "x")
    assert values == {"name": "x"}
    assert screen.count("name: an answer is needed\n") == 2


async def test_an_answer_that_does_not_fit_is_asked_for_again():
    class Form(BaseModel):
        age: int = Field(ge=0)
        street: Street

    values, screen = await form_of(
        Form, "old", "-1", "3", "here", '{"name": "High", "number": "x"}', '{"name": "H", "number": 1}'
    )
    assert values == {"age": 3, "street": {"name": "H", "number": 1}}
    lines = screen.split("\n")
    assert "age: Input should be a valid integer, unable to parse string as an integer" in lines[0]
    assert "age: Input should be greater than or equal to 0" in lines[1]
    assert "street: " in lines[2]
    assert "street (number): Input should be a valid integer" in lines[3]
    assert "Traceback" not in screen
    assert "pydantic" not in screen


async def test_validators_of_a_field_run_as_soon_as_it_is_answered():
    class Form(BaseModel):
        first: int
        second: int
        words: list[str]

        @field_validator("second")
        @classmethod
        def later(cls, value: int, info: ValidationInfo) -> int:
            if value <= info.data["first"]:
                raise ValueError("second must be more than first")
            return value

        @field_validator("words", mode="before")
        @classmethod
        def split(cls, value: object) -> object:
            return value.split(",") if isinstance(value, str) else value

    values, screen = await form_of(Form, "5", "4", "6", "a,b")
    assert values == {"first": 5, "second": 6, "words": ["a", "b"]}
    assert "second: Value error, second must be more than first\nsecond (integer): " in screen


async def test_a_whole_that_does_not_fit_is_asked_for_again():
    class Form(BaseModel):
        a: int
        b: int

        @model_validator(mode="after")
        def check(self) -> "Form":
            if self.a + self.b != 5:
                raise ValueError("a and b must make 5")
            return self

    values, screen = await form_of(Form, "1", "2", "1", "4")
    assert values == {"a": 1, "b": 4}
    assert "the whole: Value error, a and b must make 5\na (integer): " in screen


async def test_only_the_fields_that_offend_are_asked_for_again():
    class Form(BaseModel):
        a: int
        b: int
        c: int = Field(default=-1, ge=0, validate_default=True)

    values, screen = await form_of(Form, "1", "2", "", "3")
    assert values == {"a": 1, "b": 2, "c": 3}
    assert screen.count("a (integer)") == screen.count("b (integer)") == 1
    assert screen.count("c (integer, default -1)") == 2


async def test_fields_are_asked_by_name_and_answered_by_alias():
    class Form(BaseModel):
        size: int = Field(alias="theSize")
        depth: int = Field(validation_alias=AliasChoices("d", "deep"))

    values, screen = await form_of(Form, "x", "1", "y", "2")
    assert values == {"theSize": 1, "depth": 2}
    assert "size: Input should be a valid integer" in screen
    assert "depth: Input should be a valid integer" in screen


async def test_a_strict_model_reads_what_json_can_say():
    class Form(BaseModel):
        model_config = ConfigDict(strict=True, extra="forbid")
        n: int
        yes: bool
        day: date
        pair: tuple[int, int]

    values, _ = await form_of(Form, "5", "true", "2020-01-01", "[1, 2]")
    assert values == {"n": 5, "yes": True, "day": "2020-01-01", "pair": [1, 2]}


async def test_a_validator_of_the_whole_waits_for_all_fields():
    class Form(BaseModel):
        a: int
        b: int

        @model_validator(mode="before")
        @classmethod
        def check(cls, data: dict[str, object]) -> dict[str, object]:
            return {"a": data["a"], "b": data["b"]}

    assert (await form_of(Form, "1", "2"))[0] == {"a": 1, "b": 2}


async def test_a_field_without_a_json_type_is_asked_for():
    class Odd:
        pass

    class Form(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        odd: Odd | None = None
        n: int

    values, screen = await form_of(Form, "", "1")
    assert values == {"odd": None, "n": 1}
    assert "odd (value, may be left out): n (value): " in screen


async def test_a_form_that_holds_itself_is_described():
    class Node(BaseModel):
        children: list["Node"] = []

    values, screen = await form_of(Node, '[{"children": []}]')
    assert values == {"children": [{"children": []}]}
    assert "children (JSON list, default []): " in screen


async def test_a_form_is_given_up_after_a_hundred_refusals():
    class Form(BaseModel):
        a: int

    keyboard = Keyboard("said", *["y"] * 101)
    with pytest.raises(InvalidInputError, match="the form Form was abandoned after 100 refused answers"):
        await asked(keyboard.input(), Form)


class Anything(RootModel[int]):
    pass


@pytest.mark.parametrize(
    ("model", "told"),
    [({"type": "object"}, "not {'type': 'object'}"), (int, "not <class 'int'>"), (Anything, "Anything has no fields")],
    ids=["schema", "type", "root"],
)
async def test_a_model_that_is_not_a_form_is_refused_before_asking(model, told):
    keyboard = Keyboard()
    with pytest.raises(InvalidInputError, match=told):
        await asked(keyboard.input(), model)
    assert keyboard.shown == []


class Login(BaseModel):
    user: str
    password: SecretStr = Field(min_length=4)

    @field_validator("password")
    @classmethod
    def no_digits(cls, value: SecretStr) -> SecretStr:
        if value.get_secret_value().isdigit():
            raise ValueError(f"{value.get_secret_value()} is all digits")
        return value

    @model_validator(mode="after")
    def not_the_name(self) -> "Login":
        if self.password.get_secret_value() == self.user:
            raise ValueError(f"{self.user} is both")
        return self


async def test_a_secret_is_in_the_answer_and_nowhere_else():
    values, screen = await form_of(Login, "hunter2", "abc", "12345678", "hunter2", "bob", " hunter2 ")
    assert values["password"].get_secret_value() == " hunter2 "
    assert "12345678" not in screen
    assert "hunter2" not in screen
    assert "password: Value should have at least 4 items" in screen
    assert screen.count("this was not accepted") == 2
    assert "hunter2" not in repr(values)


async def test_words_of_a_validator_are_not_shown_beside_a_secret():
    class Form(BaseModel):
        password: SecretStr
        hint: str = Field(max_length=9)

        @field_validator("hint")
        @classmethod
        def discreet(cls, value: str, info: ValidationInfo) -> str:
            password = info.data["password"].get_secret_value()
            if password.startswith(value):
                raise ValueError(f"that is how {password} begins")
            return value

    values, screen = await form_of(Form, "hunter2", "a hunted animal", "hunt", "an animal")
    assert values["hint"] == "an animal"
    assert "hint: String should have at most 9 characters" in screen
    assert "hint: this was not accepted" in screen
    assert "hunter2" not in screen


async def test_a_secret_within_a_nested_model_is_one_too():
    class Form(BaseModel):
        login: Login | None = None
        others: list[Login] = [Login(user="a", password=SecretStr("hunter2"))]

    values, screen = await form_of(
        Form, '{"user": "a", "password": "1", "hunter2": 2}', '{"user": "a", "password": "wxyz"}', ""
    )
    assert values["login"]["password"].get_secret_value() == "wxyz"
    assert "hunter2" not in screen
    assert "others (JSON list, has a default): " in screen


async def test_a_field_beside_a_nested_secret_does_not_tell_it():
    class Form(BaseModel):
        logins: list[Login]
        hint: str

        @field_validator("hint")
        @classmethod
        def discreet(cls, value: str, info: ValidationInfo) -> str:
            if value == "hunt":
                raise ValueError(f"{info.data['logins'][0].password.get_secret_value()} begins like that")
            return value

    _, screen = await form_of(Form, '[{"user": "a", "password": "hunter2"}]', "hunt", "an animal")
    assert "hint: this was not accepted" in screen
    assert "hunter2" not in screen


async def test_a_default_of_another_type_is_taken_without_a_warning():
    class Form(BaseModel):
        colour: Colour = "red"  # type: ignore[assignment]
        password: SecretStr = "hunter2"  # type: ignore[assignment]

    values, screen = await form_of(Form, "", "")
    assert values["colour"] == "red"
    assert "hunter2" not in screen
