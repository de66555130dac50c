"""The template of a run is kept for the next one of the same process: in a notebook, a sweep, a test.

A second `easgd.run` then has its workers at their first line at once, not after the seconds that importing torch takes.
"""

from __future__ import annotations

import atexit
import threading

from easgd.engines.local.template import Template, surroundings

KEPT_SECONDS = 60.0
"""How long a template waits for the next run."""


class _Kept:
    """The template that the last run of this process has left; after a while, or with the process, it ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._template: Template | None = None
        self._end: threading.Timer | None = None

    def swap(self, template: Template | None) -> Template | None:
        """Keep this one, and return what was kept until now."""
        with self._lock:
            if self._end is not None:
                self._end.cancel()
                self._end = None
            self._template, before = template, self._template
            if template is not None:
                self._end = threading.Timer(KEPT_SECONDS, self.close)
                self._end.daemon = True
                self._end.start()
        return before

    def close(self) -> None:
        """End it."""
        if (before := self.swap(None)) is not None:
            before.close()


_kept = _Kept()
atexit.register(_kept.close)


def borrow(environment: dict[str, str]) -> Template:
    """Return a template for the workers of one run: the last run's, if it was made for the same, or a new one."""
    if (found := _kept.swap(None)) is not None:
        if found.alive and found.made_for == surroundings(environment):
            return found
        found.close()
    return Template(environment)


def give_back(template: Template) -> None:
    """Keep it for the next run; one that has died, and one that another run has left meanwhile, are ended."""
    spare = _kept.swap(template) if template.alive else template
    if spare is not None:
        spare.close()
