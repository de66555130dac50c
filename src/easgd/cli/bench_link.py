"""`easgd bench link`: the laboratory's link, the throughput on it, and the race."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from easgd.bench import Row
from easgd.bench.link.network import SPEEDS, missing
from easgd.cli.parsing import Command
from easgd.errors import SettingError, unknown
from easgd.extras import require_report
from easgd.launch.output import say
from easgd.settings import Count, NonNegative, Positive, Seed, option

if TYPE_CHECKING:
    from easgd.bench.link.cases import Case


@dataclass(frozen=True)
class LinkOptions:
    """The options of `easgd bench link`."""

    json: bool = option('print a list of {"case", "value", "unit", "reference", "ratio"} for programs', False)
    throughput: bool = option("measure images per second of a worker, the MLP of 9 M parameters", False)
    race: bool = option("measure the seconds until a target", False)
    out: Path = option("folder of the records, where an interrupted race goes on", Path("link"), metavar="DIR")
    mbit: tuple[NonNegative, ...] = option(
        "speeds of the link in Mbit/s, 0 for the bare link (10 100 1000 0)", (), nargs="+", metavar="X"
    )
    cases: tuple[str, ...] = option(
        "who takes part (all), as ddp or easgd/period=50/compression=int8", (), nargs="+", metavar="CASE"
    )
    jobs: tuple[str, ...] = option("of the race: cifar, gpt, mlp (all)", (), nargs="+", metavar="NAME")
    whole: bool = option("of the race: train DDP and its kind to the end on every link", False)
    limit: Positive | None = option(
        "seconds after which a run ends (40 to 120, by the job; with --throughput 20)", metavar="SECONDS"
    )
    steps: Count | None = option("budget of a worker's steps, if it is to be smaller than the job's")
    seed: Seed = option("of the batches", 0)


COMMAND = Command(
    "bench link", LinkOptions,
    "Make two machines of network namespaces with a slow link between them, and measure plain TCP on it; with\n"
    "--throughput or --race, training. Needs Linux, root and iproute2; nothing is left behind.",
    ["bench link", "bench link --throughput --mbit 100", "bench link --race --jobs gpt --out link"],
    bare=True,
)  # fmt: skip


def main(argv: list[str]) -> list[Row] | None:
    """Run what was asked for; return rows to print, or None if all is said."""
    options = COMMAND.parse(argv)
    if (lack := missing()) is not None:
        raise SettingError(lack)
    if options.race and options.throughput:
        raise SettingError("--race and --throughput: one at a time; give the other one in a second command")
    speeds = tuple(mbit or None for mbit in options.mbit) or SPEEDS
    if not (options.race or options.throughput):
        from easgd.bench.link import speeds as tcp

        return tcp.rows(speeds)
    cases = _cases(options.cases)
    return _race(options, cases, speeds) if options.race else _throughput(options, cases, speeds)


def _cases(names: tuple[str, ...]) -> list[Case]:
    from easgd.bench.link.cases import all_cases, case

    return [case(name) for name in names] if names else all_cases()


def _throughput(options: LinkOptions, cases: list[Case], speeds: tuple[float | None, ...]) -> list[Row]:
    from easgd.bench.link import race, summary, throughput

    specs = throughput.plan(cases, speeds, options.limit or throughput.SECONDS)
    found = race.run(specs, options.out / throughput.FILE, say, both=True)
    (options.out / "throughput.md").write_text(throughput.markdown(found, summary.taking_part(found), SPEEDS))
    return throughput.rows(found, cases)


def _race(options: LinkOptions, cases: list[Case], speeds: tuple[float | None, ...]) -> list[Row] | None:
    from easgd.bench.link import race, summary
    from easgd.bench.link.jobs import JOBS

    require_report("the figure of a race")
    for name in options.jobs:
        if name not in JOBS:
            raise unknown("job", name, JOBS)
    plan = race.plan(
        options.jobs or tuple(JOBS), cases, speeds, whole=options.whole, limit=options.limit, steps=options.steps,
        seed=options.seed,
    )  # fmt: skip
    found = race.run(plan, options.out / race.FILE, say)
    shown, links = summary.taking_part(found), summary.links(found)
    text = summary.write(found, shown, links, options.out)
    if options.json:
        return summary.rows(found, shown, links)
    print(text)
    return None
