"""A folder of .wav files: what a model gets of them, whatever their rate, their channels and their bytes."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from covey.agent.cli.program import app
from covey.agent.data import load
from covey.agent.policy import NO_CODE_RULES
from covey.extras.formats.sounds import RATE, bands, log_mel, read, resampled
from covey.extras.in_use.unlabelled import load_unlabelled
from covey.extras.light.numpy_learner import LEARNER as LIGHT
from covey.shared.errors import DataError
from covey.shared.scenario.task import Task
from covey.shared.seeds import generator
from covey.shared.strategies.base import Training

CLASSES = ("high", "low")
TASK = Task.model_validate(
    {
        "features": [1, 20, 48],
        "classes": CLASSES,
        "model": "linear",
        "standardise": {"mean": [-8], "std": [8]},
    }
)
PITCH = {"high": (1500.0, 3000.0), "low": (200.0, 700.0)}


def tone(hertz: float, seconds: float, rate: int) -> Any:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)


def write(path: Path, sound: Any, rate: int, *, width: int = 2, channels: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = np.round(sound * (2 ** (8 * width - 1) - 1)).astype(np.int64)
    if width == 1:
        whole += 128
    content = whole.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width]
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        file.writeframes(np.repeat(content, channels, axis=0).tobytes())


def microphone(folder: Path, rate: int, **form: int) -> Path:
    """Tones of two classes with noise, as a microphone of this rate records them."""
    draws = generator(0, "sounds", rate)
    for name, (lowest, highest) in PITCH.items():
        for number in range(8):
            sound = tone(draws.uniform(lowest, highest), draws.uniform(0.3, 0.7), rate)
            noisy = np.clip(sound + draws.normal(0, 0.02, len(sound)), -1, 1)
            write(folder / name / f"{number}.wav", noisy, rate, **form)
    return folder


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2])
def test_a_sound_is_read_from_samples_of_every_width(
    tmp_path: Path, width: int, channels: int
) -> None:
    sound = tone(440, 0.1, RATE)
    write(tmp_path / "a.wav", sound, RATE, width=width, channels=channels)
    found = read(tmp_path / "a.wav", 98)
    assert found == pytest.approx(sound, abs=1.1 / 2 ** (8 * width - 1))


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 48_000])
def test_a_tone_has_the_same_bands_whatever_the_rate_of_its_file(rate: int) -> None:
    same = log_mel(resampled(tone(1000, 1.0, rate), rate), 40, 98)
    whole = log_mel(tone(1000, 1.0, RATE), 40, 98)
    loud = whole > whole.max() - 8
    assert same.shape == (40, 98)
    assert same[loud] == pytest.approx(whole[loud], abs=0.2)
    assert (same.argmax(axis=0) == whole.argmax(axis=0)).all()
    hertz = np.arange(257) * RATE / 512
    band = bands(40)[whole.argmax(axis=0)[0]]
    assert hertz[band > 0].min() < 1000 < hertz[band > 0].max()


def test_a_model_that_was_trained_with_one_microphone_hears_with_another(tmp_path: Path) -> None:
    studio = load(microphone(tmp_path / "studio", 44_100, channels=2, width=3), task=TASK)
    phone = load_unlabelled(microphone(tmp_path / "phone", 22_050), TASK)
    assert (studio.features.shape, studio.labels) == ((16, 1, 20, 48), CLASSES)
    layout = LIGHT.layout(TASK, NO_CODE_RULES.allowed)
    training = Training(epochs=5, lr=0.01, batch=4)
    local = LIGHT.local(
        studio, TASK, layout, training=training, rng=generator(0, "order"), rules=NO_CODE_RULES
    )
    model = local.train(np.zeros(layout.size, np.float32)).end
    there = LIGHT.local(
        phone.data, TASK, layout, training=training, rng=generator(0, "order"), rules=NO_CODE_RULES
    )
    guesses = there.predict(model, "train").argmax(axis=1)
    truth = [CLASSES.index(name.partition("/")[0]) for name in phone.files]
    assert guesses.tolist() == truth


def test_a_longer_sound_counts_with_its_beginning_and_a_shorter_one_with_silence(
    tmp_path: Path,
) -> None:
    write(tmp_path / "long.wav", np.r_[tone(500, 1.0, RATE), tone(4000, 9.0, RATE)], RATE)
    write(tmp_path / "short.wav", tone(500, 0.1, RATE), RATE)
    assert len(read(tmp_path / "long.wav", 98)) == 400 + 97 * 160
    short = log_mel(read(tmp_path / "short.wav", 98), 40, 98)
    assert (short[:, 20:] == short.min()).all()
    assert short[:, :8].max() > 0


def test_what_is_no_sound_is_named(tmp_path: Path) -> None:
    microphone(tmp_path / "data", 8_000)
    broken = tmp_path / "data" / "low" / "x.wav"
    for content in (b"", b"RIFF", b"nonsense" * 10):
        broken.write_bytes(content)
        with pytest.raises(DataError, match=r"x\.wav: not a \.wav file of PCM, or cut short"):
            load(tmp_path / "data")
    write(broken, tone(100, 0.1, 500), 500)
    with pytest.raises(DataError, match="500 samples a second, expected 1000 to 384000"):
        load(tmp_path / "data")
    broken.unlink()
    wrong = TASK.model_copy(update={"features": (3, 20, 48)})
    with pytest.raises(DataError, match=r"read as \[1, mels, frames\], and task.features is"):
        load(tmp_path / "data", task=wrong)


def test_a_folder_of_sounds_is_checked_and_proposed_like_other_data(tmp_path: Path) -> None:
    data = microphone(tmp_path / "data", 8_000)
    done = CliRunner().invoke(app, ["check", "--data", str(data)])
    assert done.exit_code == 0, done.output
    assert "1x40x98 float32" in done.output
    assert "high (" in done.output
    proposed = CliRunner().invoke(app, ["check", "--propose", "--data", str(data)])
    assert proposed.exit_code == 0, proposed.output
    assert "features: [1, 40, 98]" in proposed.stdout
