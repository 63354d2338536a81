"""Which files of a folder are videos: by name in any case, or by content, and what is left out."""

from __future__ import annotations

import os
import shutil
from fractions import Fraction

import av
import numpy as np
import pytest
from helpers.videos import numbered_frames, read_number, write_video

from sce_video.commands.main import main
from sce_video.datasets import dataset_settings, open_video, scan_folder
from sce_video.datasets.named_files import check_videos
from sce_video.datasets.readers.av_file import CONTAINERS, holds_video
from sce_video.datasets.sources import listed_extensions
from sce_video.datasets.video_dataset import VideoDataset
from sce_video.datasets.video_list import VIDEO_EXTENSIONS

#: Of FFmpeg's names for these containers: sound, pictures, and several pictures in a file.
_NO_VIDEOS = {
    *("avif", "heic", "heif", "isma", "m4a", "m4b", "mj2", "mka", "mks", "mpo", "ogg", "psp", "ra"),
    *("wma", "h26l", "ism"),
}


def extensions_of_ffmpeg():
    """Extensions that FFmpeg states for the containers that are read, in reading or writing."""
    found = set()
    for name in CONTAINERS:
        for mode in "rw":
            try:
                found |= av.format.ContainerFormat(name, mode).extensions
            except ValueError:  # read only
                continue
    return found - _NO_VIDEOS


def write_in(path, container, codec, rate=25):
    """Twelve numbered frames in a container, whatever the path is called."""
    with av.open(str(path), "w", format=container) as out:
        stream = out.add_stream(codec, rate=rate)
        stream.height, stream.width = (576, 720) if container == "mxf" else (64, 80)
        stream.pix_fmt, stream.time_base = "yuv420p", Fraction(1, rate)
        for image in numbered_frames(12, stream.height, stream.width):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        out.mux(stream.encode())
    return path


def test_every_container_that_is_read_is_listed_by_its_extensions():
    stated = {f".{name}" for name in extensions_of_ffmpeg()}
    assert stated <= {*VIDEO_EXTENSIONS} and len(stated) > 25
    assert list(VIDEO_EXTENSIONS) == sorted({*VIDEO_EXTENSIONS})


@pytest.mark.parametrize(
    ("name", "container", "codec"),
    [
        ("00001.MTS", "mpegts", "libx264"),
        ("00002.m2ts", "mpegts", "mpeg2video"),
        ("flash.F4V", "mov", "libx264"),
        ("old.qt", "mov", "mpeg4"),
        ("free.ogv", "ogg", "libvpx"),
        ("disc.VOB", "vob", "mpeg2video"),
        ("studio.mxf", "mxf", "mpeg2video"),
        ("phone.3g2", "3gp", "mpeg4"),
        ("old.divx", "avi", "mpeg4"),
    ],
)
def test_cameras_and_recorders_name_their_files_in_many_ways(tmp_path, name, container, codec):
    path = write_in(tmp_path / name, container, codec)
    videos = scan_folder(str(tmp_path))
    assert [videos.path(i) for i in range(len(videos))] == [name]
    with open_video(str(path)) as reader:
        assert read_number(reader.read(np.array([7]))[0]) == 7


@pytest.fixture
def mixed(tmp_path):
    """Two videos, one of an unknown name, and what is none: sound with a cover, text, a pipe."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    write_video(folder / "a.mp4", numbered_frames(12))
    shutil.copy(folder / "a.mp4", folder / "camera.rec")
    (folder / "notes.txt").write_text("Notes\n" * 100)
    (folder / "more.TXT").write_text("")
    (folder / "README").write_text("no extension")
    (folder / "noise.bin").write_bytes(np.random.default_rng(0).bytes(50_000))
    write_sound_with_cover(folder / "song.m4a")
    os.mkfifo(folder / "pipe.rec")
    return folder


def write_sound_with_cover(path):
    with av.open(str(path), "w", format="mp4") as out:
        sound = out.add_stream("aac", rate=44100)
        cover = out.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 64, 64, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        image = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")
        out.mux(cover.encode(image.reformat(format="yuvj420p")))
        out.mux(cover.encode())
        samples = av.AudioFrame.from_ndarray(
            np.zeros((1, 1024), np.float32), format="fltp", layout="mono"
        )
        samples.sample_rate = 44100
        out.mux(sound.encode(samples))
        out.mux(sound.encode())


def test_other_files_are_counted(mixed, capsys):
    check_videos(str(mixed))
    assert capsys.readouterr().err == (
        f"{mixed}: 1 video, and 7 other files, which are left out (2 .rec, 2 .txt, "
        "1 without extension, 1 .bin, 1 .m4a). --all-files reads files that contain a video\n"
    )


def test_all_files_are_listed_by_content(mixed, capsys):
    extensions = listed_extensions(all_files=True)
    videos = scan_folder(str(mixed), extensions)
    assert [videos.path(i) for i in range(len(videos))] == ["a.mp4", "camera.rec"]
    check_videos(str(mixed), extensions)
    assert (
        "2 videos, and 6 other files" in (line := capsys.readouterr().err) and "--all" not in line
    )
    # A run records it, so that it lists the same files when it is resumed without the option.
    settings = dataset_settings(mixed, extensions)
    assert len(VideoDataset(**settings)) == 2 and len(VideoDataset(str(mixed))) == 1


def test_a_folder_without_a_known_name_says_what_it_holds(mixed):
    (mixed / "a.mp4").unlink()
    with pytest.raises(ValueError, match=r"no video in .*, but 7 other files.*--all-files reads"):
        check_videos(str(mixed))


def test_no_file_of_the_package_is_a_video(tmp_path):
    """FFmpeg guesses raw streams by a few bytes; text, code and archives must not be guessed."""
    import sce_video

    package = os.path.dirname(sce_video.__file__)
    files = [os.path.join(f, name) for f, _, names in os.walk(package) for name in names]
    np.savez(tmp_path / "arrays.npz", a=np.random.default_rng(0).normal(size=(50, 50)))
    assert not any(map(holds_video, [*files[::4], str(tmp_path / "arrays.npz")]))


def test_a_command_counts_what_it_leaves_out(mixed, tmp_path, capsys):
    out = tmp_path / "report.tsv"
    assert main(["verify", str(mixed), "--out", str(out), "--workers", "1"]) == 0
    shown = capsys.readouterr()
    assert "7 other files" in shown.err and "1 files" in shown.out
    assert main(["verify", str(mixed), "--out", str(out), "--workers", "1", "--all-files"]) == 0
    assert "2 files" in capsys.readouterr().out
