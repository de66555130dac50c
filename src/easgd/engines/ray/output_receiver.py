"""What the desk has gathered from other machines, taken to where a user looks for it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from easgd.launch.output import LineRelay, Log


class OutputReceiver:
    """Lines that workers printed go to the terminal and their logs; records of other machines into the folder."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self._echoes: dict[str, LineRelay] = {}
        self._logs: dict[str, Log] = {}

    def deliver(self, parcels: Iterable[tuple[str, bytes]]) -> None:
        """Take parcels to their places: NAME.jsonl, out-RANK or err-RANK."""
        for name, data in parcels:
            if name.endswith(".jsonl"):
                with open(self.out / Path(name).name, "ab") as file:
                    file.write(data)
            else:
                self._echo(name).feed(data)

    def _echo(self, name: str) -> LineRelay:
        if name not in self._echoes:
            stream, _, rank = name.partition("-")
            log = self._logs.setdefault(rank, Log(self.out / "logs" / f"worker-{rank}.log"))
            self._echoes[name] = LineRelay(int(rank), log, "stdout" if stream == "out" else "stderr")
        return self._echoes[name]

    def close(self) -> None:
        """Write what has no end of line yet, and close the logs."""
        for echo in self._echoes.values():
            echo.finish()
        for log in self._logs.values():
            log.close()
