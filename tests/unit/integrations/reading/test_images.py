"""Images: IDX, arrays, and folders of pictures by class."""

import gzip
import struct

import numpy as np
import pytest

from smidgen.errors import DataError
from smidgen.integrations.reading.images import join_images, read_image_set

PIXELS = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)


def write_idx(path, array):
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    with gzip.open(path, "wb") as file:
        file.write(header + array.tobytes())
    return path


def test_idx_with_and_without_labels(tmp_path):
    path = write_idx(tmp_path / "train-images-idx3-ubyte.gz", PIXELS)
    images, labels = read_image_set(path)
    assert images.shape == (1, 3, 4)
    assert labels == []
    assert images.inputs[1, 0, 2, 3] == pytest.approx(23 / 255)
    write_idx(tmp_path / "train-labels-idx1-ubyte.gz", np.array([7, 9], np.uint8))
    assert read_image_set(path)[1] == [7, 9]


def test_arrays_and_another_shape(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, images=PIXELS, labels=np.array([0, 1]))
    images, labels = read_image_set(path, shape=(1, 3, 4))
    assert labels == [0, 1]
    with pytest.raises(DataError, match=r"shape \(1, 28, 28\), as in training"):
        read_image_set(path, shape=(1, 28, 28))
    both = join_images([images, images])
    assert len(both) == 4
    assert both.keys()[0] == both.keys()[2] != both.keys()[1]
    assert both.take([1]).inputs.equal(images.inputs[1:])


def test_a_folder_for_each_class(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name, shade in (("cat", 0), ("dog", 255)):
        (tmp_path / name).mkdir()
        image.new("L", (6, 5), shade).save(tmp_path / name / "1.png")
    images, labels = read_image_set(tmp_path)
    assert labels == ["cat", "dog"]
    assert images.shape == (1, 5, 6)
    assert images.files == ("cat/1.png", "dog/1.png")
    assert images.inputs[1].min() == 1
    # Pictures of another size and in colour become what training saw.
    image.new("RGB", (50, 40), (255, 255, 255)).save(tmp_path / "new.png")
    new, none = read_image_set(tmp_path / "new.png", shape=(1, 5, 6))
    assert new.shape == (1, 5, 6)
    assert none == []
    mixed, none = read_image_set(tmp_path)
    assert mixed.shape == (3, 32, 32)
    assert none == []


def test_what_is_no_image_is_refused(tmp_path):
    with pytest.raises(DataError, match="exists"):
        read_image_set(tmp_path / "gone")
    with pytest.raises(DataError, match="a folder of pictures for each class"):
        read_image_set(tmp_path)
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2)))
    with pytest.raises(DataError, match="--table"):
        read_image_set(tmp_path / "a.npz")
    pytest.importorskip("PIL.Image")
    (tmp_path / "bad.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"bad\.png must be a picture"):
        read_image_set(tmp_path / "bad.png")


def test_a_picture_that_ends_early_is_named(tmp_path):
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "1.png"
    noise = np.random.default_rng(0).integers(0, 256, (30, 30), dtype=np.uint8)
    image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:400])
    with pytest.raises(DataError, match=r"1\.png must be a picture that Pillow can read"):
        read_image_set(path)
