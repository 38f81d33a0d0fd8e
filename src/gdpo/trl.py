"""``from gdpo.trl import GDPOTrainer``: the TRL adapter under a short name; see ``gdpo.adapters.trl``."""

from gdpo.adapters.trl import AuditCallback, GDPOMixin, GDPOTrainer, GRPOConfig, GRPOTrainer, Step, attach

__all__ = ["AuditCallback", "GDPOMixin", "GDPOTrainer", "GRPOConfig", "GRPOTrainer", "Step", "attach"]
