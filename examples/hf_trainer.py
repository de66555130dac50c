"""Train a tiny GPT-2 with Hugging Face's Trainer and one callback. Nothing is downloaded.

    python examples/hf_trainer.py                    # alone
    easgd launch -n 2 examples/hf_trainer.py         # two workers; evaluations and checkpoints are of the center

The text is that of Python's own manual, the tokens are its bytes, the weights are random at the start.
Needs `pip install 'easgd[transformers]'`.
"""

import argparse
import pydoc_data.topics

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import easgd
from easgd.integrations.transformers import ElasticAveragingCallback, ElasticTrainerMixin

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--accumulate", type=int, default=2)
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--period", type=int, default=10)
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--out", default="hf_trainer")
args = parser.parse_args()


class Blocks(torch.utils.data.Dataset):
    """Blocks of 64 bytes; the model shifts the labels itself."""

    def __init__(self, text: bytes) -> None:
        self.tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def __len__(self) -> int:
        return len(self.tokens) // 64

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        block = self.tokens[64 * i : 64 * (i + 1)]
        return {"input_ids": block, "labels": block}


class ElasticTrainer(ElasticTrainerMixin, Trainer):
    """`Trainer`, but for evaluating and saving the center."""


text = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics)).encode()
cut = len(text) * 9 // 10
torch.manual_seed(0)
config = GPT2Config(
    vocab_size=256, n_positions=64, n_embd=args.width, n_layer=2, n_head=4, bos_token_id=None, eos_token_id=None
)
trainer = ElasticTrainer(
    model=GPT2LMHeadModel(config),
    args=TrainingArguments(
        output_dir=args.out,
        max_steps=args.steps,
        per_device_train_batch_size=args.batch_size,
        gradient_accumulation_steps=args.accumulate,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=args.steps // 10,
        bf16=args.bf16,
        eval_strategy="steps",
        eval_steps=max(1, args.steps // 4),
        save_strategy="no",
        logging_steps=max(1, args.steps // 20),
        use_cpu=not torch.cuda.is_available(),
        report_to=[],
    ),
    train_dataset=Blocks(text[:cut]),
    eval_dataset=torch.utils.data.Subset(Blocks(text[cut:]), range(64)),
    callbacks=[ElasticAveragingCallback(easgd.EASGD(period=args.period))],
)
trainer.train()
trainer.save_model()  # the center
print(f"loss of the center after {args.steps} steps: {trainer.evaluate()['eval_loss']:.3f}")
