"""PyTorch models: imported, they compute what PyTorch does. Skipped where torch is absent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tunefarm.compiler.errors import ModelError, TunefarmError

import tunefarm
from tunefarm.api import read_model
from tunefarm.cli.app import run

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")
pytest.importorskip("onnxscript")

SEED = 0


class Classifier(torch.nn.Module):  # type: ignore[name-defined, misc]
    """Two inputs, two results, and parts that behave otherwise in training."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.norm.running_mean.uniform_(-1, 1)
        self.drop = torch.nn.Dropout(0.5)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, image: Any, scale: Any) -> tuple[Any, Any]:
        x = torch.relu(self.norm(self.conv(image))) * scale
        return self.head(self.drop(x).mean((2, 3))), x.amax((1, 2, 3))


@pytest.fixture
def example() -> tuple[Any, tuple[Any, Any]]:
    torch.manual_seed(SEED)
    return Classifier(), (torch.randn(2, 3, 17, 19), torch.tensor(1.5))


def wanted(model: Any, args: tuple[Any, ...]) -> list[np.ndarray[Any, Any]]:
    """What PyTorch says in evaluation mode."""
    model.eval()
    with torch.no_grad():
        results = model(*args)
    return [r.numpy() for r in (results if isinstance(results, tuple) else (results,))]


def check(module: tunefarm.IRModule, feeds: dict[str, Any], outputs: list[Any]) -> None:
    results = tunefarm.build(module).run(feeds)
    for result, output in zip(results.values(), outputs, strict=True):
        np.testing.assert_allclose(result, output, rtol=1e-4, atol=1e-5)


def test_a_module_computes_the_same_and_keeps_its_modes(example: Any) -> None:
    model, args = example
    model.conv.eval()
    module = tunefarm.from_torch(model, args)
    assert (model.training, model.conv.training, model.drop.training) == (True, False, True)
    check(module, {"image": args[0], "scale": args[1]}, wanted(model, args))


def test_attention_computes_the_same() -> None:
    torch.manual_seed(SEED)
    layer = torch.nn.TransformerEncoderLayer(48, 3, 64, batch_first=True)
    tokens = torch.randn(2, 11, 48)
    module = tunefarm.from_torch(layer, (tokens,))
    check(module, {"src": tokens}, wanted(layer, (tokens,)))


def test_keyword_arguments_name_inputs(example: Any) -> None:
    model, (image, scale) = example
    module = tunefarm.from_torch(model, kwargs={"scale": scale, "image": image})
    check(module, {"image": image, "scale": scale}, wanted(model, (image, scale)))


def test_a_saved_program_is_a_model_of_the_command_line(
    example: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, args = example
    path = tmp_path / "classifier.pt2"
    torch.export.save(torch.export.export(model.eval(), args), path)
    check(read_model(path), {"image": args[0], "scale": args[1]}, wanted(model, args))
    assert run(["tasks", str(path)]) == 0
    assert "conv" in capsys.readouterr().out
    with pytest.raises(TunefarmError, match="has the shapes it was exported with"):
        read_model(path, {"image": (1, 3, 8, 8)})


def test_what_cannot_be_imported_is_one_sentence(
    example: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    class Undecided(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    model, args = example
    notes = tmp_path / "notes.pt2"
    notes.write_text("no program")
    program = torch.export.export(model.eval(), args)
    mistakes = [
        ((model,), "missing a required argument: 'image'"),
        ((model, (torch.zeros(1, 4, 5, 5), args[1])), "expected input"),
        ((Undecided(), (args[0],)), "data-dependent"),
        ((program, args), "leave args and kwargs out"),
        ((tmp_path / "none.pt2",), "does not exist"),
        ((notes,), "is not what torch.export.save wrote"),
        ((3,), "not int"),
    ]
    capfd.readouterr()
    for given, sentence in mistakes:
        with pytest.raises(ModelError, match=sentence) as caught:
            tunefarm.from_torch(*given)
        assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_bfloat16_model_with_batch_normalisation() -> None:
    torch.manual_seed(SEED)
    layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers).eval()
    x = torch.randn(1, 3, 7, 7)
    want = model(x).detach().numpy()
    module = tunefarm.from_torch(model.to(torch.bfloat16), (x.to(torch.bfloat16),))
    (name,) = (p.name for p in module.main.params)
    (got,) = tunefarm.build(module).run({name: x.to(torch.bfloat16)}).values()
    assert got.dtype.name == "bfloat16"
    assert np.abs(got.astype(np.float32) - want).max() <= 2e-2 * np.abs(want).max()
