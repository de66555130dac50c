"""Image files that replace ImageNet below paper scale and are read as it is: generated, or a user's photographs."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory


@dataclass(frozen=True)
class Generated:
    name: str
    size: int
    classes: int
    train: int
    test: int

    def make(self) -> None:
        """Write the images as files and make the data set of them, unless it exists."""
        from easgd.data import make_folder, path_of

        if all(path_of(self.name, split).exists() for split in ("train", "test")):
            return
        with TemporaryDirectory() as folder:
            for split, count in (("train", self.train), ("test", self.test)):
                self._write(Path(folder), split, count)
            # Stored with any size, as photographs are, so that they are sampled and cropped as ImageNet's.
            make_folder(folder, name=self.name, size=self.size)

    def _write(self, folder: Path, split: str, count: int) -> None:
        from PIL import Image

        from easgd.data import ImageFile, make_synthetic

        file = ImageFile(
            make_synthetic(count, self.size, classes=self.classes, split=split, path=folder / f"{split}.easgd")
        )
        for number in range(len(file)):
            image, label = file.image(number), int(file.labels[number])
            place = folder / split / file.classes[label]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(place / f"{number:05d}.png", compress_level=1)


def make_photographs(folder: Path) -> str:
    """Make a data set of a folder in ImageNet's layout, shorter sides of 256 pixels; return its name.

    The name tells apart folders that are called the same, and what a folder had in it.
    """
    from easgd.data import make_folder, path_of

    root, digest = folder.resolve(), sha256()
    for path in sorted(root.rglob("*")):
        stat = path.stat()
        digest.update(f"{path} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    name = f"photos-{root.name}-{digest.hexdigest()[:8]}"
    if not all(path_of(name, split).exists() for split in ("train", "test")):
        make_folder(folder, name=name, size=256)
    return name
