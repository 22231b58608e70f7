"""What speculation gains, and that it costs nothing where it can't gain:

    python -m bench.engine.speculation [--speculation ngram] [--rows 1 4 16] [--rounds 3]

Two engines, one that speculates and one that doesn't, take turns at the same requests. `edit` asks
for a text that stands in the prompt, with a word changed throughout; `story` is drawn at
temperature 1 and repeats little. For each number of rows: the median over the rounds of the time
without speculation divided by the time with it, the same of processor time (which other processes
change less), the tokens a step of a row, and which share of the
output stands in the text before it (in runs of four tokens or more); and the processor time of the
decision what to guess, a call. The exit status is 1 if any
token differs. The last line is one flat JSON object.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bench.common.figures import print_figures
from jaxserve import LLM, SamplingParams
from jaxserve.config import MIB, EngineConfig

FILE = """class Basket:
    def __init__(self, owner):
        self.owner = owner
        self.entries = []

    def add(self, name, price, count=1):
        if price < 0:
            raise ValueError("a price can't be negative")
        self.entries.append((name, price, count))

    def total(self):
        result = 0
        for name, price, count in self.entries:
            result += price * count
        return result

    def report(self):
        lines = [f"Basket of {self.owner}"]
        for name, price, count in self.entries:
            lines.append(f"{count} x {name}: {price * count}")
        lines.append(f"Total: {self.total()}")
        return lines
"""
HEADING = "\n# The same file with Basket renamed to {}:\n"
STORIES = ("Once upon a time, in a town by the sea,", "The history of the bridge begins in")
RUN = 4  # tokens of a quotation, at least


def edit_prompt() -> str:
    """A file, twice the file with a name changed, and the first line of a third time."""
    parts = ["# A file:\n", FILE]
    for name in ("Cart", "Bag", "Crate"):
        parts += [HEADING.format(name), FILE.replace("Basket", name)]
    whole = "".join(parts)
    return whole[: whole.rindex("class Crate:") + len("class Crate:\n")]


def quoted_share(prompt: list[int], output: list[int]) -> float:
    """The share of output tokens that end a run of RUN tokens that stands in the text before."""
    text, seen, quoted = prompt + output, set[tuple[int, ...]](), 0
    for end in range(RUN, len(text) + 1):
        run = tuple(text[end - RUN : end])
        quoted += end > len(prompt) and run in seen
        seen.add(run)
    return quoted / len(output)


class HostTime:
    """Processor time of a speculating engine's decisions, which another process can't lengthen."""

    def __init__(self, llm: LLM) -> None:
        self.seconds, self.steps = 0.0, 0
        speculation: Any = llm.core._speculation
        for name in ("wants_tokens", "draft"):
            setattr(speculation, name, self._timed(getattr(speculation, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            begin = time.thread_time()
            try:
                return call(*args)
            finally:
                self.seconds += time.thread_time() - begin
                self.steps += 1

        return timed


def requests(task: str, rows: int, tokens: int) -> tuple[list[str], list[SamplingParams]]:
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    if task == "edit":
        return [edit_prompt()] * rows, [replace(params, temperature=0)] * rows
    prompts = [STORIES[row % len(STORIES)] for row in range(rows)]
    return prompts, [replace(params, temperature=1.0, seed=row) for row in range(rows)]


def run(llm: LLM, work: tuple[list[str], list[SamplingParams]]) -> tuple[float, float, list[Any]]:
    """Seconds from the first token on, nearly (the prompts are in the prefix cache), seconds of
    processor time, and the outputs."""
    llm.generate(work[0], [replace(params, max_tokens=1) for params in work[1]])
    begin, cpu = time.perf_counter(), time.process_time()
    outputs = llm.generate(*work)
    return time.perf_counter() - begin, time.process_time() - cpu, outputs


def compare(
    plain: LLM, guessing: LLM, host: HostTime, task: str, rows: int, args: argparse.Namespace
) -> dict[str, Any]:
    host.seconds, host.steps = 0.0, 0
    work, equal = requests(task, rows, args.tokens), True
    ratios, cpu = [], []
    before = guessing.core.report().speculation
    for number in range(args.rounds):
        both = {}
        for llm in (plain, guessing) if number % 2 else (guessing, plain):
            both[llm] = run(llm, work)
        ratios.append(both[plain][0] / both[guessing][0])
        cpu.append(both[plain][1] / both[guessing][1])
        tokens = [[o.outputs[0].token_ids for o in both[llm][2]] for llm in (plain, guessing)]
        equal = equal and tokens[0] == tokens[1]
    after = guessing.core.report().speculation
    assert before is not None
    assert after is not None
    made = rows * args.tokens * args.rounds
    saved = after.accepted_tokens - before.accepted_tokens
    shares = [
        quoted_share(list(o.prompt_token_ids), list(o.outputs[0].token_ids)) for o in both[plain][2]
    ]
    name = f"{task}_{rows}"
    return {
        f"{name}_gain": round(statistics.median(ratios), 3),
        f"{name}_gain_least": round(min(ratios), 3),
        f"{name}_gain_most": round(max(ratios), 3),
        f"{name}_cpu_gain": round(statistics.median(cpu), 3),
        f"{name}_tokens_a_step": round(made / (made - saved), 2),
        f"{name}_guesses_taken": round(saved / max(1, after.draft_tokens - before.draft_tokens), 2),
        f"{name}_host_us": round(1e6 * host.seconds / max(1, host.steps), 1),
        f"{name}_quoted": round(statistics.mean(shares), 2),
        f"{name}_equal": equal,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=EngineConfig().model)
    parser.add_argument("--speculation", default="ngram")
    parser.add_argument("--num-speculative-tokens", type=int)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--tasks", nargs="+", choices=("edit", "story"), default=["edit", "story"])
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    settings: dict[str, Any] = {"max_model_len": 2048, "kv_cache_memory": 512 * MIB}
    plain = LLM(args.model, progress=False, **settings)
    guessing = LLM(
        args.model,
        progress=False,
        speculation=args.speculation,
        num_speculative_tokens=args.num_speculative_tokens,
        **settings,
    )
    host = HostTime(guessing)
    figures: dict[str, Any] = {"speculation": args.speculation}
    for task in args.tasks:
        for rows in args.rows:
            found = compare(plain, guessing, host, task, rows, args)
            print(found, flush=True)
            figures |= found
    figures["compiles_after_ready"] = guessing.core.compiles
    print_figures(figures)
    sys.exit(not all(value for name, value in figures.items() if name.endswith("_equal")))


if __name__ == "__main__":
    main()
