"""How `easgd.run` hands a function to its processes: pickled, in an unnamed file that they inherit."""

from __future__ import annotations

import io
import os
import pickle
import tempfile
from collections.abc import Callable, Sequence
from typing import IO, Any

from easgd.errors import SettingError


def pack(fn: Callable[..., object], args: Sequence[object]) -> IO[bytes]:
    """Write the function to a file, with what multiprocessing tells a spawned child about the main module."""
    from multiprocessing import spawn

    main: dict[str, Any] = spawn.get_preparation_data("easgd-worker")
    main.pop("authkey")  # for connections between the processes; there are none
    if not os.path.exists(main.get("init_main_from_path", "")):
        main.pop("init_main_from_path", None)  # "<stdin>" is not a file
    prompt = not {"init_main_from_name", "init_main_from_path"} & main.keys()
    name = getattr(fn, "__name__", repr(fn))
    if prompt and getattr(fn, "__module__", None) == "__main__":
        raise SettingError(
            f"fn = {name}: workers cannot import a function from a notebook or a prompt; "
            f"write it to a file (`%%writefile train.py`) and `from train import {name}`"
        )
    try:
        packed = pickle.dumps(main) + pickle.dumps((fn, tuple(args)))
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError) as error:
        raise SettingError(
            f"fn = {name}: it cannot be sent to a worker ({error}); "
            "use a function defined at the top level of a module, and plain data in args"
        ) from error
    file = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
    file.write(packed)
    file.flush()
    return file


def call(descriptor: str) -> None:
    """Call the function that the parent packed.

    Only the parent could write the file: it is inherited and has no name. It is read by position, because all workers
    share it.
    """
    from multiprocessing import spawn

    size = os.fstat(int(descriptor)).st_size
    packed = io.BytesIO()
    while packed.tell() < size:
        packed.write(os.pread(int(descriptor), size - packed.tell(), packed.tell()))
    packed.seek(0)
    spawn.prepare(pickle.load(packed))
    try:
        function, args = pickle.load(packed)
    except (AttributeError, ImportError) as error:
        raise SettingError(
            f"a worker cannot load the function: {error}; define it, and the classes of its arguments, in a module"
        ) from error
    function(*args)
