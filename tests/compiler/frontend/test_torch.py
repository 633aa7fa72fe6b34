"""PyTorch models: imported, they compute what PyTorch does. Skipped where torch is absent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tunefarm.compiler.errors import ModelError

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
    with pytest.raises(ModelError, match=r"exported with the shape \(2, 3, 17, 19\) and cannot be"):
        read_model(path, {"image": (1, 3, 8, 8)})


class Related(torch.nn.Module):  # type: ignore[name-defined, misc]
    """Inputs of b, 2·b and b + 1 rows, and results whose shapes are computed from them."""

    def forward(self, x: Any, y: Any, rest: Any) -> tuple[Any, Any, Any]:
        pairs = torch.cat([x, x]).flatten(1) + y[:, None]
        return pairs, x.reshape(x.shape[0] * 3, -1), rest[0].sum() + torch.arange(x.shape[0])


def related(rows: int) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(SEED)
    x, y, rest = ((rows, 3, 5, 7), (2 * rows,), (rows + 1,))
    return (*(torch.randn(s, generator=generator) for s in (x, y)),
            [torch.randn(rest, generator=generator)])  # fmt: skip


@pytest.fixture(scope="module")
def dynamic() -> Any:
    """A program of 1 to 16 rows."""
    b = torch.export.Dim("b", min=1, max=16)
    sizes = {"x": {0: b}, "y": {0: 2 * b}, "rest": [{0: b + 1}]}
    return torch.export.export(Related().eval(), related(4), dynamic_shapes=sizes)


@pytest.mark.parametrize("rows", [1, 2, 5, 16])
@pytest.mark.parametrize("named", ["x", "y", "rest_0"])
def test_a_given_shape_fixes_every_input_with_its_symbol(
    dynamic: Any, rows: int, named: str
) -> None:
    feeds = dict(zip(("x", "y", "rest_0"), (*related(rows)[:2], related(rows)[2][0]), strict=True))
    module = tunefarm.from_torch(dynamic, shapes={named: tuple(feeds[named].shape)})
    check(module, feeds, wanted(Related(), related(rows)))


def test_a_dynamic_program_is_a_model_of_the_command_line(
    dynamic: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "dynamic.pt2"
    torch.export.save(dynamic, path)
    assert run(["tasks", str(path)]) != 0
    told = capsys.readouterr().err
    assert "input 'x' has the symbolic shape (s" in told
    assert "use --shape x=1x3x5x7" in told
    assert run(["tasks", str(path), "--shape", "x=4x3x5x7"]) == 0
    with pytest.raises(ModelError, match="was exported for 1 to 16 and cannot be 17"):
        read_model(path, {"x": (17, 3, 5, 7)})


@pytest.mark.parametrize(
    ("shapes", "sentence"),
    [
        ({"x": (4, 3, 5, 8)}, r"the shape \(s\d+, 3, 5, 7\) and cannot be given \(4, 3, 5, 8\)"),
        ({"x": (4, 3, 5)}, r"cannot be given \(4, 3, 5\)"),
        ({"x": (0, 3, 5, 7)}, r"cannot be given \(0, 3, 5, 7\)"),
        ({"y": (7,)}, r"'y' was exported with the shape \(2\*s\d+\) and cannot be given \(7,\)"),
        ({"y": (10,), "x": (4, 3, 5, 7)}, r"given 10 for the dimension 2\*s\d+, which is 8 by"),
        ({"y": (34,)}, r"of input 'x' was exported for 1 to 16 and cannot be 17"),
        ({"z": (4,)}, "no input 'z' of a shape; its inputs are x, y, rest_0$"),
        ({"x": 4}, r"shapes\['x'\] is 4, expected whole numbers"),
        ({}, r"give it one with shapes=\{'x': \(1, 3, 5, 7\)\}"),
    ],
)
def test_a_shape_that_was_not_exported_is_refused(dynamic: Any, shapes: Any, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence) as caught:
        tunefarm.from_torch(dynamic, shapes=shapes)
    assert "\n" not in str(caught.value)


def test_what_the_exporter_refuses_of_dynamic_dimensions_is_taken_at_a_shape() -> None:
    """Pooling to 2×2 has a window that depends on the height."""
    pool = torch.nn.AdaptiveAvgPool2d((2, 2))
    height = 2 * torch.export.Dim("h", min=2, max=16)
    image = torch.randn(1, 3, 8, 6)
    program = torch.export.export(pool, (image,), dynamic_shapes=({2: height},))
    module = tunefarm.from_torch(program, shapes={"input": tuple(image.shape)})
    check(module, {"input": image}, wanted(pool, (image,)))


def test_constants_stay_and_dynamic_numbers_are_refused() -> None:
    class Scaled(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any, by: int, mode: str) -> Any:
            return x * by if mode == "x" else x

    x, dim = torch.randn(4, 6), torch.export.Dim("b")
    fixed = torch.export.export(Scaled(), (x, 3, "x"), dynamic_shapes=({0: dim}, None, None))
    module = tunefarm.from_torch(fixed, shapes={"x": (2, 6)})
    check(module, {"x": x[:2]}, [3 * x[:2].numpy()])
    sizes = ({0: dim}, torch.export.Dim.DYNAMIC, None)
    varying = torch.export.export(Scaled(), (x, 3, "x"), dynamic_shapes=sizes)
    with pytest.raises(ModelError, match="'by' is a number that was exported as dynamic"):
        tunefarm.from_torch(varying, shapes={"x": (2, 6)})


def test_a_dimension_without_an_end_has_a_start() -> None:
    """What is suggested fits, and PyTorch's 2 stands for any extent."""

    def export(dim: Any) -> Any:
        return torch.export.export(
            torch.nn.ReLU(), (torch.zeros(8, 3),), dynamic_shapes=({0: dim},)
        )

    many = export(torch.export.Dim("b", min=4) * 2)
    with pytest.raises(ModelError, match=r"shapes=\{'input': \(8, 3\)\}"):
        tunefarm.from_torch(many)
    with pytest.raises(ModelError, match="was exported for 8 or more and cannot be 6"):
        tunefarm.from_torch(many, shapes={"input": (6, 3)})
    module = tunefarm.from_torch(export(torch.export.Dim("b")), shapes={"input": (1, 3)})
    assert module.main.params[0].type.shape == (1, 3)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
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
    network = tmp_path / "net.onnx"
    network.write_bytes(b"")
    mistakes = [
        ((model,), "missing a required argument: 'image'"),
        ((model, (torch.zeros(1, 4, 5, 5), args[1])), "expected input"),
        ((Undecided(), (args[0],)), "data-dependent"),
        ((program, args), "leave args and kwargs out"),
        ((tmp_path / "none.pt2",), "does not exist"),
        ((notes,), "is not what torch.export.save wrote"),
        ((network,), "is an ONNX model; read it with from_onnx"),
        ((torch.jit.trace(model, args), args), "give the torch.nn.Module .* torch.export.export"),
        ((model, {"image": args[0], "scale": args[1]}), "by name as kwargs="),
        ((model, 3), "args and kwargs are int and dict, expected a tuple"),
        (
            (model, args, None, {"image": (1, 3, 17, 19)}),
            "give examples of others and leave shapes",
        ),
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
