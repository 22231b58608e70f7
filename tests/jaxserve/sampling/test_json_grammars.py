"""What grammars let through of JSON and of other notations, with a real tokenizer: outputs token by
token, as the engine draws them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxserve.errors import InvalidRequestError, UnprocessableError
from jaxserve.sampling.grammar import GrammarCompiler, StepBudget
from jaxserve.sampling.json_schema import closed, without_unknown_formats
from jaxserve.sampling.masks import MaskRules, TokenMask
from jaxserve.sampling.params import SamplingParams, StructuredOutputsParams
from jaxserve.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Tokenizer:
    return load_tokenizer(demo_model)


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer.grammar_vocabulary(tokenizer.num_ids))


def allowed(row: np.ndarray) -> set[int]:
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


class Output:
    """One output under a constraint, with masks as the engine makes them."""

    def __init__(
        self,
        compiler: GrammarCompiler,
        tokenizer: Tokenizer,
        constraint: StructuredOutputsParams,
        **params: Any,
    ) -> None:
        self.tokenizer = tokenizer
        self.ends = set(tokenizer.eos_token_ids)
        rules = MaskRules.build(
            SamplingParams(structured_outputs=constraint, **params),
            sorted(self.ends),
            [],
            compiler.compile(constraint),
            tokenizer.num_ids,
        )
        assert rules is not None
        self.mask, self.ids = TokenMask(rules), list[int]()

    def next(self) -> set[int]:
        return allowed(self.mask.row(len(self.ids), self.ids, StepBudget(1)))

    def write(self, text: str) -> bool:
        """Whether the output may go on with the text."""
        for token in self.tokenizer.encode(text, add_special_tokens=False):
            if token not in self.next():
                return False
            self.ids.append(token)
        return True

    def ends_with(self, wanted: str, limit: int = 400) -> str:
        """The text of an output that prefers one token wherever it may."""
        (token,) = self.tokenizer.encode(wanted, add_special_tokens=False)
        while not self.ends & (choices := self.next()) and len(self.ids) < limit:
            self.ids.append(token if token in choices else min(choices))
        assert len(self.ids) < limit
        return self.tokenizer.decode(self.ids)


def accepts(
    compiler: GrammarCompiler, tokenizer: Tokenizer, constraint: StructuredOutputsParams, text: str
) -> bool:
    output = Output(compiler, tokenizer, constraint)
    return output.write(text) and bool(output.ends & output.next())


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "format": "password"}, '"x"', "1"),
        ({"properties": {"format": {"format": "int32"}}}, '{"format": 1}', "[[}"),
        ({"enum": [{"format": "int32"}]}, '{"format": "int32"}', "{}"),
        (
            {"type": "string", "format": "uuid"},
            '"123e4567-e89b-12d3-a456-426614174000"',
            '"123e4567"',
        ),
        ({"anyOf": [{"type": "string", "format": "ipv4"}]}, '"10.0.0.1"', '"home"'),
    ],
)
def test_unknown_formats_are_annotations(
    compiler: GrammarCompiler, tokenizer: Tokenizer, schema: Any, good: str, bad: str
) -> None:
    constraint = StructuredOutputsParams(json=schema)
    assert accepts(compiler, tokenizer, constraint, good)
    assert not accepts(compiler, tokenizer, constraint, bad)


@pytest.mark.parametrize("wanted", ["\n", " ", "\t"])
@pytest.mark.parametrize("schema", [{"enum": [[1]]}, {"enum": [{"a": [1, "b"]}]}])
def test_white_space_ends(
    compiler: GrammarCompiler, tokenizer: Tokenizer, schema: Any, wanted: str
) -> None:
    output = Output(compiler, tokenizer, StructuredOutputsParams(json=schema))
    assert json.loads(output.ends_with(wanted)) == schema["enum"][0]


@pytest.mark.parametrize("indent", [None, 2, 4, 8, "\t"])
def test_usual_layouts_are_possible(
    compiler: GrammarCompiler, tokenizer: Tokenizer, indent: Any
) -> None:
    value = {"a": [1, {"b": [[], {}, {"c": "x"}]}], "d": None}
    for constraint in (
        StructuredOutputsParams(json_object=True),
        StructuredOutputsParams(json={"type": "object"}),
    ):
        for separators in ((",", ":"), (", ", ": "), (" , ", " : ")):
            text = json.dumps(value, indent=indent, separators=separators)
            assert accepts(compiler, tokenizer, constraint, text)


@pytest.mark.parametrize("schema", [{"type": "number"}, {"type": "integer"}, {"minimum": 3}])
@pytest.mark.parametrize("wanted", ["9", "0", "."])
def test_numbers_end(
    compiler: GrammarCompiler, tokenizer: Tokenizer, schema: Any, wanted: str
) -> None:
    schema = {"type": "number"} | schema
    inside = {"type": "array", "items": schema, "minItems": 2, "maxItems": 2}
    output = Output(compiler, tokenizer, StructuredOutputsParams(json=inside))
    values = json.loads(output.ends_with(wanted))
    assert len(values) == 2
    assert all(abs(float(value)) < 1e308 for value in values)
    free = Output(compiler, tokenizer, StructuredOutputsParams(json_object=True))
    assert free.write('{"9": "' + "9" * 50 + '", "x": ' + "9" * 20)
    assert not free.write("9")
    assert free.write("e99")
    assert not free.write("9")
    assert free.write(', "y": -1.2345678901234567e-89}')


def test_a_long_constant_is_written_whole(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    least = -1.7976931348623157e308
    output = Output(compiler, tokenizer, StructuredOutputsParams(json={"enum": [least]}))
    assert float(output.ends_with("9")) == least


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('root ::= "a" | "b"', "b", "c"),
        (
            'root ::= item+ ws\nitem ::= "- " [a-z]+ "\\n" # a line\nws ::= [ \\t]*',
            "- ab\n- c\n",
            "ab",
        ),
        ('start: "a" | "b"', "b", "c"),
        ("%llguidance {}\nstart: X\nX: /[ab]::=/", "a::=", "c"),
    ],
)
def test_both_notations_of_grammars(
    compiler: GrammarCompiler, tokenizer: Tokenizer, grammar: str, good: str, bad: str
) -> None:
    constraint = StructuredOutputsParams(grammar=grammar)
    assert accepts(compiler, tokenizer, constraint, good)
    assert not accepts(compiler, tokenizer, constraint, bad)


def test_a_malformed_grammar_is_refused(compiler: GrammarCompiler) -> None:
    for grammar in ('root ::= "a', "root ::= (", "root ::= other", "start: other"):
        with pytest.raises(InvalidRequestError, match="can't be used"):
            compiler.compile(StructuredOutputsParams(grammar=grammar))


def test_a_finished_grammar_ends_before_min_tokens(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    once = StructuredOutputsParams(choice=("ab",))
    output = Output(compiler, tokenizer, once, min_tokens=10)
    assert output.write("ab")
    assert output.next() <= output.ends
    more = Output(compiler, tokenizer, StructuredOutputsParams(regex="a+"), min_tokens=10)
    assert more.write("a")
    assert not more.ends & more.next()
    with pytest.raises(UnprocessableError):
        Output(compiler, tokenizer, once, allowed_token_ids=(5,)).next()


def test_calls_have_no_properties_that_nothing_names() -> None:
    no_others = {"additionalProperties": False}
    named = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert closed(named) == named | no_others
    assert closed({"type": "object"}) == {"type": "object", "properties": {}} | no_others
    free = {"type": "object", "properties": {"any": {"type": "object"}, "in": {"items": named}}}
    assert closed(free) == {
        "type": "object",
        "properties": {"any": {"type": "object"}, "in": {"items": named | no_others}},
        "additionalProperties": False,
    }
    for said in (
        named | {"additionalProperties": True},
        named | {"patternProperties": {"x": {}}},
        {"allOf": [named, {"properties": {"b": {}}}]},
    ):
        assert closed(said) == said


def test_formats_in_data_are_no_keywords() -> None:
    data = {"const": {"format": "x"}, "default": {"format": "x"}, "examples": [{"format": "x"}]}
    schema = {"properties": {"format": {"type": "string", "format": "x"}}} | data
    right = {"properties": {"format": {"type": "string"}}} | data
    assert without_unknown_formats(schema) == right


BAD = {"type": "string", "pattern": "(?=x)"}  # a regular expression that llguidance can't follow
NULL = {"type": "null"}


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        (BAD, ""),
        ({"properties": {"a": {"type": "string"}, "b": BAD}}, ".properties.b"),
        ({"properties": {"a": {"items": {"anyOf": [NULL, BAD]}}}}, ".properties.a.items.anyOf[1]"),
        ({"properties": {"a": {"$ref": "#/$defs/c"}}, "$defs": {"c": BAD}}, ".properties.a"),
        ({"properties": {"a": {"$ref": "#/nowhere"}}}, ".properties.a"),
        ({"minimum": 5, "maximum": 3, "type": "integer"}, ""),
        ({"items": {"type": "foo"}}, ".items"),
    ],
)
def test_an_error_names_the_part_of_the_schema(
    compiler: GrammarCompiler, schema: Any, path: str
) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        compiler.compile(StructuredOutputsParams(json=schema))
    assert raised.value.param == f"structured_outputs{path}"
    assert str(raised.value).startswith(f"structured_outputs{path}: the grammar can't be used: ")
    assert "\n" not in str(raised.value)


def test_a_schema_that_is_too_large_as_a_whole_names_no_part(compiler: GrammarCompiler) -> None:
    properties = {f"p{i}": {"type": "string"} for i in range(3000)}
    with pytest.raises(InvalidRequestError, match="Too many items") as raised:
        compiler.compile(StructuredOutputsParams(json={"properties": properties}))
    assert raised.value.param == "structured_outputs"


def test_an_error_names_the_rule_of_a_schema_in_a_grammar(compiler: GrammarCompiler) -> None:
    good, bad = '{"type": "string"}', json.dumps({"properties": {"a": BAD}})
    grammar = f"start: one | two\none: %json {good}\ntwo: %json {bad}"
    with pytest.raises(InvalidRequestError) as raised:
        compiler.compile(StructuredOutputsParams(grammar=grammar))
    assert raised.value.param == "structured_outputs.two.properties.a"
    assert "look-around" in str(raised.value)
    with pytest.raises(InvalidRequestError, match=r"at 1\(8\)") as raised:
        compiler.compile(StructuredOutputsParams(grammar="start: nothing"))
    assert raised.value.param == "structured_outputs"
