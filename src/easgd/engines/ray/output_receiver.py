"""Writes what the coordinator has collected from workers to the terminal, the logs and the run's folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from easgd.files import reason
from easgd.launch.output import LineRelay, Log, say


class OutputReceiver:
    """Lines that workers printed go to the terminal and their logs; records of other machines into the folder."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self._relays: dict[str, LineRelay] = {}
        self._logs: dict[str, Log] = {}
        self._warned = False

    def deliver(self, chunks: Iterable[tuple[str, bytes]]) -> None:
        """Write chunks of output: each is named NAME.jsonl, out-RANK or err-RANK, a group's ranks 0.1."""
        for name, data in chunks:
            if name.endswith(".jsonl"):
                path = self.out / name  # records of a center of its own are in a folder below
                if not path.resolve().is_relative_to(self.out.resolve()):
                    continue
                self._append(path, data)
            else:
                self._relay(name).feed(data)

    def _append(self, path: Path, data: bytes) -> None:
        """Append records; a full disk costs the records, not the run."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "ab") as file:
                file.write(data)
        except OSError as error:
            if not self._warned:
                say(f"warning: records are no longer written in {self.out} ({reason(error)})")
            self._warned = True

    def _relay(self, name: str) -> LineRelay:
        if name not in self._relays:
            stream, _, rank = name.partition("-")
            int(rank.replace(".", ""))  # it becomes part of a file's name
            log = self._logs.setdefault(rank, Log(self.out / "logs" / f"worker-{rank}.log"))
            self._relays[name] = LineRelay(rank, log, "stdout" if stream == "out" else "stderr")
        return self._relays[name]

    def close(self) -> None:
        """Write what has no end of line yet, and close the logs."""
        for relay in self._relays.values():
            relay.finish()
        for log in self._logs.values():
            log.close()
