"""`boundgen build`: a checkpoint in, an artifact out, with what was measured on the way."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from engine.beam.bounds import MAX_STEPS, MAX_WIDTH, BeamBounds
from engine.build.accuracy import CHART
from engine.build.package import build_artifact
from engine.build.spec import BuildSpec
from engine.manifest import Manifest, read_manifest
from engine.packed import BatchBounds
from engine.quant.budget import Budget
from tools.accuracy import accuracy_table, read_calibration, times_table
from tools.errors import UserError
from tools.steps import Steps

# Options that nothing looks at where none of the others was given.
IDLE_WITHOUT = {
    ("calibrate",): ("max_label_shift", "max_kl", "min_winners"),
    ("precision",): ("scaling", "kernels"),
    ("precision", "calibrate"): ("calibration",),
}

app = typer.Typer(rich_markup_mode="rich")


class Device(StrEnum):
    """What the artifact is compiled for; it must be there while building."""

    CPU = "cpu"
    CUDA = "cuda"


class Dtype(StrEnum):
    """Precision of weights and arithmetic."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Precision(StrEnum):
    """Of the matrices on CUDA."""

    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    AUTO = "auto"


class Scaling(StrEnum):
    """Of 8-bit activations: from calibration texts, or a token at a time."""

    STATIC = "static"
    TOKEN = "token"


class Kernels(StrEnum):
    """Of our own, on CUDA."""

    FASTEST = "fastest"
    PORTABLE = "portable"


@app.command(epilog="Example: [bold]boundgen build --model ./Qwen3-0.6B --out ./artifacts/qwen3[/]")
def build(
    context: typer.Context,
    model: Annotated[
        Path, typer.Option(exists=True, help="A Hugging Face directory (safetensors) or a GGUF file.")
    ],
    out: Annotated[Path, typer.Option(help="The artifact's directory; one that is there is replaced.")],
    name: Annotated[
        str | None, typer.Option(help="What replies call the model; the directory's name without it.")
    ] = None,
    device: Annotated[Device, typer.Option(help="What to compile for.")] = Device.CPU,
    dtype: Annotated[
        Dtype | None, typer.Option(help="float32 on a CPU and bfloat16 on CUDA without it.")
    ] = None,
    precision: Annotated[
        Precision | None,
        typer.Option(
            help="CUDA: kernels of our own in captured graphs, matrices in this precision. fp8 needs sm_89; "
            "int8 does not, and keeps answers closer: give it texts (--calibrate or --calibration). auto: 8 "
            "bits where --calibrate finds that the answers stay. Without it torch's kernels, no graphs."
        ),
    ] = None,
    scaling: Annotated[Scaling, typer.Option(help="How fp8 activations are scaled.")] = Scaling.STATIC,
    kernels: Annotated[
        Kernels,
        typer.Option(
            help="With a precision: the fastest kernels that serve a layer (on sm_90 they take nvcc: "
            "pip install 'boundgen\\[hopper]'), or those for any CUDA GPU alone."
        ),
    ] = Kernels.FASTEST,
    calibration: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="Texts for scales and for rounding to int8, one a line."
        ),
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(
            help="JSONL of requests: measures every 8-bit scheme on them (emulated; minutes) and judges the "
            "artifact by them. demo: the demo's own texts and pipelines."
        ),
    ] = None,
    pipeline: Annotated[
        list[Path] | None,
        typer.Option(exists=True, dir_okay=False, help="Whose template makes --calibrate's requests texts."),
    ] = None,
    max_label_shift: Annotated[
        float, typer.Option(help="Most that a label's log-probability may move on average.")
    ] = Budget().label_shift,
    max_kl: Annotated[float, typer.Option(help="Most mean KL of the next token.")] = Budget().kl,
    min_winners: Annotated[
        float, typer.Option(help="Least share of the same sequences, where a pipeline searches.")
    ] = Budget().winners,
    samples: Annotated[int, typer.Option(min=1, help="Most samples in one packed batch.")] = 256,
    tokens_per_request: Annotated[
        int, typer.Option(min=1, help="Most tokens in one packed batch, and so in one request.")
    ] = 8192,
    tokens_per_sample: Annotated[int, typer.Option(min=1, help="Most tokens in one sample.")] = 512,
    beam_width: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_WIDTH, help="Beams a prompt; with --beam-steps the artifact can search."),
    ] = None,
    beam_steps: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_STEPS, help="Decode steps of a search; sequences have one token more."),
    ] = None,
    beam_prompts: Annotated[
        int, typer.Option(min=1, help="Most prompts in one batch of a search; memory grows with it.")
    ] = 16,
    ignore_option: Annotated[
        list[str] | None,
        typer.Option(help="A config option that boundgen does not know and you know to be without effect."),
    ] = None,
) -> None:
    """Compile a model into an artifact: a directory that workers load, for this kind of machine.

    Llama, Qwen2 and Qwen3 checkpoints are supported, as ...ForCausalLM, as a bare model or as
    ...ForSequenceClassification. The result is compared with transformers before it is written; a
    configuration option that boundgen does not serve is an error. Takes minutes for a small model.
    """
    refuse_idle(context)
    spec = BuildSpec(
        model=model,
        out=out,
        name=name or out.resolve().name,
        device=device.value,
        dtype=None if dtype is None else dtype.value,
        bounds=make_bounds(samples, tokens_per_request, tokens_per_sample),
        ignore_options=tuple(ignore_option or ()),
        precision=None if precision is None else precision.value,
        scaling=scaling.value,
        kernels=kernels.value,
        calibrate=read_calibration(calibrate, pipeline or [], Budget(max_label_shift, max_kl, min_winners)),
        calibration=read_texts(calibration),
        beam=make_beam(beam_width, beam_steps, min(beam_prompts, samples)),
    )
    with Steps() as say:
        path = build_artifact(spec, say)
    manifest, digest = read_manifest(path)
    console = Console(highlight=False)
    console.print(summary(path, manifest, digest))
    if manifest.accuracy is not None:
        console.print(accuracy_table(manifest.accuracy))
        console.print(times_table(manifest.accuracy["times"]))
        console.print(f"chart: {escape(str(path / CHART))}", soft_wrap=True)


def refuse_idle(context: typer.Context) -> None:
    """UserError for an option that was given and that nothing would look at."""
    for needed, idle in IDLE_WITHOUT.items():
        if any(context.params[each] is not None for each in needed):
            continue
        for each in idle:
            source = context.get_parameter_source(each)
            if source is not None and source.name == "COMMANDLINE":
                wanted = " or ".join(f"--{name}" for name in needed)
                raise UserError(f"--{each.replace('_', '-')}: has no effect without {wanted}")


def make_bounds(samples: int, tokens_per_request: int, tokens_per_sample: int) -> BatchBounds:
    """UserError where they contradict each other."""
    try:
        return BatchBounds(samples=samples, tokens=tokens_per_request, tokens_per_sample=tokens_per_sample)
    except ValueError as error:
        raise UserError(f"--tokens-per-request, --tokens-per-sample: {error}") from error


def read_texts(path: Path | None) -> tuple[str, ...]:
    """--calibration's lines that hold a text; UserError where there are none."""
    if path is None:
        return ()
    try:
        texts = tuple(line for line in path.read_text("utf-8").splitlines() if line.strip())
    except UnicodeDecodeError:
        raise UserError(f"--calibration = {str(path)!r}: is no UTF-8 text") from None
    if not texts:
        raise UserError(f"--calibration = {str(path)!r}: holds no text")
    return texts


def make_beam(width: int | None, steps: int | None, prompts: int) -> BeamBounds | None:
    """UserError where one of the two comes without the other."""
    if (width is None) != (steps is None):
        raise UserError("--beam-width, --beam-steps: they go together; give both, or neither")
    return None if width is None or steps is None else BeamBounds(width, steps, prompts)


def summary(path: Path, manifest: Manifest, digest: str) -> Table:
    """The manifest's main points, one a line."""
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    bounds, parity = manifest.bounds, manifest.parity
    agreement = "" if parity.top1_agreement is None else f", top-1 agreement {parity.top1_agreement:.1%}"
    lines = {
        "artifact": f"{path} ({size / 1e6:,.0f} MB)",
        "model": f"{manifest.name}, {manifest.family}, {manifest.dtype}, head: {manifest.head}",
        "compiled for": f"{manifest.device} {manifest.device_arch}, torch {manifest.torch}",
        "bounds": f"{bounds.samples} samples, {bounds.tokens} tokens, {bounds.tokens_per_sample} a sample",
        "parity": f"{parity.quantity} of {parity.samples} samples against {parity.reference}: "
        f"max {parity.max_abs_error:.1e}, mean {parity.mean_abs_error:.1e}{agreement}",
    }
    if manifest.beam is not None:
        beam, found = manifest.beam.bounds, manifest.beam.parity
        lines["beams"] = f"{beam.width} of {beam.steps + 1} tokens, {beam.prompts} prompts a batch"
        lines["beam parity"] = (
            f"{found.prompts} prompts, {found.width} beams against {found.reference}: "
            f"max {found.max_abs_error:.1e}, {found.same_sequences:.1%} the same sequences"
        )
    lines["digest"] = digest
    table = Table(show_header=False, box=None, pad_edge=False)
    for key, value in lines.items():
        table.add_row(f"[bold]{key}[/]", escape(value))
    return table
