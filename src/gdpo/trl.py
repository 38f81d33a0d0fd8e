"""``from gdpo.trl import GDPOTrainer``: the TRL adapter under a short name; see ``gdpo.adapters.trl``."""

from gdpo.adapters.trl import GDPOMixin, GDPOTrainer, GRPOConfig, GRPOTrainer, Step, attach

__all__ = ["GDPOMixin", "GDPOTrainer", "GRPOConfig", "GRPOTrainer", "Step", "attach"]
