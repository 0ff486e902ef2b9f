"""Training with frameworks that know torch.distributed only, as their users write it."""

from __future__ import annotations

import os
import signal
from typing import Any

BATCHES = 8


def die_once(flag: str) -> None:
    if not os.path.exists(flag):
        with open(flag, "w"):
            os.kill(os.getpid(), signal.SIGKILL)


def lightning(flag: str) -> dict[str, Any]:
    import pytorch_lightning as pl
    import torch
    import torch.distributed as dist
    from pytorch_lightning.strategies import DDPStrategy

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.layer(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

        def on_train_batch_end(self, *_: Any) -> None:
            if self.global_step == 3 and self.global_rank == 1:
                die_once(flag)

    pl.seed_everything(1)
    rows = torch.utils.data.TensorDataset(torch.arange(256.0).reshape(64, 4) / 256)
    trainer = pl.Trainer(
        max_epochs=1, limit_train_batches=BATCHES, accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]), logger=False, enable_checkpointing=False,
        strategy=DDPStrategy(process_group_backend="troupe"), enable_progress_bar=False)
    model = Model()
    trainer.fit(model, torch.utils.data.DataLoader(rows, batch_size=2))
    return {"rank": trainer.global_rank, "size": trainer.world_size, "steps": trainer.global_step,
            "weight": model.layer.weight.flatten().tolist(), "backend": dist.get_backend()}


def accelerate(flag: str) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    dist.init_process_group("troupe")
    accelerator = Accelerator(cpu=True)
    set_seed(1)
    rows = torch.utils.data.TensorDataset(torch.arange(256.0).reshape(64, 4) / 256)
    model: Any = torch.nn.Linear(4, 1)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), 0.1),
        torch.utils.data.DataLoader(rows, batch_size=2))
    steps = 0
    for (batch,) in loader:
        optimizer.zero_grad()
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        steps += 1
        if steps == 3 and accelerator.process_index == 1:
            die_once(flag)
        if steps == BATCHES:
            break
    seen = accelerator.gather(torch.tensor([steps]))
    return {"rank": accelerator.process_index, "size": accelerator.num_processes,
            "steps": int(seen.min()), "backend": dist.get_backend(),
            "weight": model.module.weight.flatten().tolist()}
