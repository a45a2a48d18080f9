"""The audit of payments: compares what the payment API did with what the tables say. Values in, findings out."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from quiesce.drill.payment_endpoint import Charges


@dataclass(frozen=True, slots=True)
class PaymentFindings:
    """`charged`: orders. `repeated`: attempts beyond the first, all of them with the first one's key. `lost_answers`:
    charges whose answer was cut off on purpose."""

    charged: int
    repeated: int
    lost_answers: int
    twice: tuple[str, ...]
    """Orders that were charged under two keys."""
    disputed: tuple[str, ...]
    """Orders that are charged and not paid by the tables, or the other way round."""

    @property
    def clean(self) -> bool:
        return not (self.twice or self.disputed)


def audit_payments(charges: Charges, paid: Collection[str]) -> PaymentFindings:
    """Args:
    paid: ids of the orders that the tables call paid, once nothing is under way any more.
    """
    attempts = Counter(charges.asked)
    return PaymentFindings(
        charged=len(charges.charged()),
        repeated=sum(attempts.values()) - len(attempts),
        lost_answers=charges.lost,
        twice=tuple(charges.twice()),
        disputed=tuple(sorted(charges.charged() ^ set(paid))),
    )
