"""Compares engines on one machine, one model and one trace, in turns.

    python -m bench.peers.compare OUT [--rounds 2] [--engines TEXT ...] [--quick]
        [--concurrency 1 4 8 16 32] [--rates 0.5 1 2]

Starts the engines that are installed (by bench/peers/setup.sh, in the variables that it names) and
pauses each (SIGSTOP) while another is measured, so that it has the machine to itself. Every engine
gets the same requests in a round, and other ones in the next; in every other round the engines
come in the opposite order. Before an engine's first round each load runs once with short answers.
Two sweeps: requests in flight, with prompts of 64 and answers of 32 tokens on average; and Poisson
arrivals with lengths distributed as Alpaca's. Records are appended to OUT/records.jsonl, so that a
later run can add rounds or engines; OUT/compare.{md,json,png,html} show all of them. An engine that
is missing, fails, or takes more than --limit seconds for a load is named with the reason. The share
of the processor that other programs used is recorded too.

Limit: the load's client shares the cores with the engine. The last line is one flat JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import signal
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from bench.common import demo_weights
from bench.common.figures import commit, print_figures
from bench.common.server_process import ServerFailed, ServerProcess
from bench.peers.compare import page, records
from bench.peers.compare.engines import Engine, all_engines
from bench.peers.compare.processor import Others
from bench.peers.compare.records import Record, Results
from jaxserve.bench.datasets import make_dataset
from jaxserve.bench.load_generator import Load, drive
from jaxserve.bench.report import summarise
from jaxserve.bench.settings import DatasetConfig, LoadConfig

SECONDS_OF_ARRIVALS = 8.0


@dataclass(frozen=True, slots=True)
class Point:
    """One load."""

    sweep: str
    value: float

    def dataset(self, seed: int) -> DatasetConfig:
        if self.sweep == "rate":
            count = max(4, round(self.value * SECONDS_OF_ARRIVALS))
            return DatasetConfig("alpaca-like", num_prompts=count, seed=seed)
        count = max(3, round(self.value * 1.5)) if self.value < 32 else int(self.value)
        return DatasetConfig(
            "random",
            num_prompts=count,
            input_tokens=64,
            output_tokens=32,
            range_ratio=0.5,
            seed=seed,
        )

    def warm_up(self) -> DatasetConfig:
        """As many requests at once as the load has, with prompts of its lengths, other texts and
        short answers."""
        if self.sweep == "rate":
            return DatasetConfig("alpaca-like", num_prompts=4, seed=WARM_UP_SEED)
        dataset = replace(self.dataset(WARM_UP_SEED), num_prompts=int(self.value))
        return replace(dataset, output_tokens=4)

    def load(self, url: str) -> LoadConfig:
        if self.sweep == "rate":
            return LoadConfig(url, request_rate=self.value)
        return LoadConfig(url, max_concurrency=int(self.value))


WARM_UP_SEED = 1_000_000  # no round has so high a number


class Runner:
    """Starts the engines and drives them through the loads."""

    def __init__(self, out: Path, folder: Path, limit_s: float) -> None:
        self._out, self._folder, self._limit_s = out, folder, limit_s
        self._file = out / "records.jsonl"
        self._servers: dict[str, ServerProcess] = {}
        self._warm: set[tuple[str, Point]] = set()

    def start(self, engine: Engine) -> str | None:
        """Starts the engine and pauses it; returns why that failed, or None."""
        if engine.missing:
            return engine.missing
        log = self._out / f"{engine.name.replace(' ', '-')}.log"
        try:
            server = ServerProcess(
                lambda port: engine.command_line(self._folder, port), engine.environment, log
            )
        except ServerFailed as failure:
            return str(failure)
        self._servers[engine.name] = server
        server.pause()
        print(f"{engine.name}: ready after {server.ready_s:.1f} s", flush=True)
        return None

    def measure(self, engine: Engine, points: list[Point], seed: int) -> None:
        """Drives one engine through all loads, up to the first that takes too long. Before its
        first round, each load runs once with short answers, so that what an engine does at a
        shape's first use isn't measured."""
        server = self._servers.get(engine.name)
        if server is None:
            return
        server.resume()
        for point in points:
            try:
                if (engine.name, point) not in self._warm:
                    self._drive(server, point, WARM_UP_SEED, point.warm_up())
                    self._warm.add((engine.name, point))
                others = Others(server.family)
                load = self._drive(server, point, seed, point.dataset(seed))
            except TimeoutError:
                self.note(engine, point, seed, self._too_slow(point))
                server.stop()
                del self._servers[engine.name]
                return
            found = figures(load) | {"others_share": round(others.share(), 3)}
            record = Record(engine.name, point.sweep, point.value, seed, found, commit=commit())
            records.append(self._file, record)
            print(f"{engine.name:32} {point.sweep} {point.value:g}: {record.figures}", flush=True)
        server.pause()

    def note(self, engine: Engine, point: Point, seed: int, reason: str) -> None:
        """Records why there are no figures."""
        record = Record(engine.name, point.sweep, point.value, seed, reason=reason)
        records.append(self._file, record)
        print(f"{engine.name:32} {reason}", flush=True)

    def stop(self) -> None:
        for server in self._servers.values():
            server.terminate()
        for server in self._servers.values():
            server.stop()

    def _too_slow(self, point: Point) -> str:
        return (
            f"{point.sweep} {point.value:g} took over {self._limit_s:.0f} s; "
            "it and the loads after it were skipped"
        )

    def _drive(
        self, server: ServerProcess, point: Point, seed: int, dataset: DatasetConfig
    ) -> Load:
        work = make_dataset(dataset)

        async def limited() -> Load:
            async with asyncio.timeout(self._limit_s):
                return await drive(point.load(server.url), work, seed=seed)

        return asyncio.run(limited())


def figures(load: Load) -> dict[str, float]:
    """The figures of the requests that were answered; `failed` counts the others."""
    found = summarise(load.outcomes, load.duration_s, {})
    done = [outcome for outcome in load.outcomes if outcome.error is None]
    kept = {"failed": found["failed"], "completed": found["completed"]}
    if done:
        per_token = statistics.fmean(o.latency_s / max(o.output_tokens, 1) for o in done)
        kept |= {
            "output_tok_s": found["output_tokens_per_s"],
            "ttft_ms": found["median_ttft_ms"],
            "normalised_ms": round(per_token * 1000, 3),
            "latency_ms": found["median_e2el_ms"],
        }
    return kept  # type: ignore[return-value]


def facts_of(results: Results) -> dict[str, str]:
    """The machine, and each engine's version, to print with the figures."""
    facts = {"Machine": page.machine(), "Date": datetime.date.today().isoformat()}
    facts["Commit"] = ", ".join(results.commits())
    facts[page.OTHERS] = f"{results.worst('others_share'):.0%} at most"
    for engine in all_engines():
        if engine.name in results.engines() and not engine.missing:
            facts[engine.name] = "; ".join(filter(None, [engine.read_version(), engine.note]))
    return facts


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder of records, table and figures")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--engines", nargs="*", default=[""], help="parts of their names; without any, only draws"
    )
    parser.add_argument("--concurrency", type=float, nargs="*", default=[1, 4, 8, 16, 32])
    parser.add_argument("--rates", type=float, nargs="*", default=[0.5, 1, 2])
    parser.add_argument("--limit", type=float, default=90.0, help="seconds for one load")
    parser.add_argument("--quick", action="store_true", help="one round of two small loads")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.concurrency, args.rates = 1, [1, 4], [1]
    return args


def main() -> None:
    args = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped
    args.out.mkdir(parents=True, exist_ok=True)
    points = [Point("concurrency", value) for value in args.concurrency]
    points += [Point("rate", value) for value in args.rates]
    engines = [e for e in all_engines() if any(part in e.name for part in args.engines)]
    runner = Runner(args.out, demo_weights.write(demo_weights.default_folder()), args.limit)
    first = len(records.read(args.out / "records.jsonl"))
    try:
        for engine in engines:
            reason = runner.start(engine)
            if reason is not None:
                runner.note(engine, points[0], 0, reason)
        for number in range(args.rounds):
            # Who goes first alternates, because the machine's speed drifts.
            for engine in engines if number % 2 == 0 else reversed(engines):
                runner.measure(engine, points, seed=first + number)
    finally:
        runner.stop()
    results = Results(records.read(args.out / "records.jsonl"))
    page.write(args.out, results, facts_of(results))
    print((args.out / "compare.md").read_text())
    print_figures(page.flat(results))


if __name__ == "__main__":
    main()
