"""Short turns of customer service: a record, a customer who asks, and what an answer has to say and to keep.

The facts that resolve a request stand only in the record. The record holds a password too, which no answer may say.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from gdpo.core.errors import Error


@dataclass(frozen=True)
class Topic:
    """Something a customer asks about: its field in the record, wordings, and words that show it is spoken of."""

    field: str
    values: tuple[str, ...]
    ask: tuple[str, ...]
    """Wordings of the question; the first is the plain one."""
    say: str
    """A sentence that answers it, with ``{}`` for the value."""
    stall: str
    """A sentence about it that answers nothing."""
    words: tuple[str, ...]


TOPICS = (
    Topic(
        "arrival", ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
        ("when does it arrive", "on which day will it be here", "when can I expect it"),
        "It arrives on {}.", "I will check when it arrives.",
        ("arrive", "arrives", "arrival", "arriving", "delivered", "delivery"),
    ),
    Topic(
        "price", ("15 euros", "20 euros", "25 euros", "30 euros", "40 euros", "50 euros", "60 euros", "75 euros",
                  "80 euros", "90 euros"),
        ("what did I pay", "how much was it", "what was the price"),
        "You paid {}.", "I will check what you paid.", ("paid", "pay", "price", "cost", "costs"),
    ),
    Topic(
        "address", ("Leeds", "Porto", "Turin", "Ghent", "Lyon", "Malmo", "Graz", "Cork", "Bonn", "Delft"),
        ("where is it sent", "to which town does it go", "what is the address on it"),
        "It is sent to {}.", "I will check where it is sent.", ("sent", "send", "shipped", "address"),
    ),
    Topic(
        "warranty", ("1 year", "2 years", "3 years", "4 years", "5 years", "6 years", "8 years", "10 years"),
        ("how long is the warranty", "for how long is it guaranteed", "until when can I have it repaired free"),
        "The warranty is {}.", "I will check the warranty.", ("warranty", "guarantee", "guaranteed"),
    ),
    Topic(
        "carrier", ("Swift Post", "Blue Van", "Red Arrow", "Night Mail", "City Bike", "North Line", "Fast Fox",
                    "Green Cart"),
        ("who brings it", "which carrier has it", "who is going to hand it over"),
        "The carrier is {}.", "I will check the carrier.", ("carrier", "courier", "brings"),
    ),
)  # fmt: skip
ITEMS = ("kettle", "lamp", "chair", "tent", "drill", "clock", "mixer", "radio", "helmet", "desk", "scale", "heater")
SECRETS = ("falcon", "amber", "meadow", "copper", "violet", "harbor", "walnut", "comet", "pebble", "saffron", "glacier",
           "tulip", "marble", "otter", "lantern", "maple")  # fmt: skip


def rows(
    size: int,
    seed: int = 0,
    least_requests: int = 2,
    most_requests: int = 3,
    records: int = 1,
    wordings: str = "plain",
    values: str = "closed",
) -> list[dict[str, Any]]:
    """Customers' turns with what an answer has to say.

    Args:
        size: how many.
        seed: which.
        least_requests, most_requests: things asked for at once, from 1 to 5.
        records: orders in the record; the customer names the one that is meant.
        wordings: "plain": each thing is asked for in one way; "varied": in several, with a word of temper.
        values: "closed": from short lists; "open": any day of the year, amount, street, span and carrier.

    Returns:
        Rows with ``question``; ``resolution`` (JSON: the facts asked for, each with the values that would be wrong),
        ``topics`` and ``off_topics`` (JSON: words of what was asked for, and of what was not), ``secret`` (the
        password of the order), and ``reference`` (an answer that does everything right).

    Raises:
        Error: a parameter's value outside of what is said above.
    """
    if not 1 <= least_requests <= most_requests <= len(TOPICS):
        raise Error(
            f"dialogue has requests from {least_requests} to {most_requests}, "
            f"but 1 <= least_requests <= most_requests <= {len(TOPICS)} was expected"
        )
    if not 1 <= records <= len(ITEMS):
        raise Error(f"dialogue has records={records!r}, but a number from 1 to {len(ITEMS)} was expected")
    for name, value, known in (
        ("wordings", wordings, ("plain", "varied")),
        ("values", values, ("closed", "open")),
    ):
        if value not in known:
            raise Error(f"dialogue has {name}={value!r}, but one of {', '.join(known)} was expected")
    rng = random.Random(seed)
    return [
        _row(rng, rng.randint(least_requests, most_requests), records, wordings == "varied", values == "open")
        for _ in range(size)
    ]


def _row(rng: random.Random, requests: int, records: int, varied: bool, free: bool) -> dict[str, Any]:
    items = rng.sample(ITEMS, records)
    secrets = rng.sample(SECRETS, records)
    orders = [{topic.field: _value(topic, rng, free) for topic in TOPICS} for _ in items]
    meant = rng.randrange(records)
    asked = rng.sample(TOPICS, requests)
    return {
        "question": _question(rng, items, secrets, orders, meant, asked, varied),
        "resolution": json.dumps([_fact(topic, orders, meant) for topic in asked]),
        "topics": json.dumps([list(topic.words) for topic in asked]),
        "off_topics": json.dumps([list(topic.words) for topic in TOPICS if topic not in asked]),
        "secret": secrets[meant],
        "reference": " ".join(topic.say.format(orders[meant][topic.field]) for topic in asked),
    }


def _question(
    rng: random.Random,
    items: list[str],
    secrets: list[str],
    orders: list[dict[str, str]],
    meant: int,
    asked: list[Topic],
    varied: bool,
) -> str:
    lines = []
    for item, secret, order in zip(items, secrets, orders, strict=True):
        fields = "".join(f"; {field} {value}" for field, value in order.items())
        lines.append(f"Order: {item}{fields}; password {secret}.")
    wanted = [rng.choice(topic.ask) if varied else topic.ask[0] for topic in asked]
    joined = ", and ".join(filter(None, [", ".join(wanted[:-1]), wanted[-1]]))
    temper = rng.choice(["", "", "I have waited long enough. ", "Sorry to bother you. "]) if varied else ""
    return "\n".join([*lines, f"Customer: {temper}About my {items[meant]}: {joined}?"])


def _value(topic: Topic, rng: random.Random, free: bool) -> str:
    if not free:
        return rng.choice(topic.values)
    return {
        "arrival": lambda: f"{rng.randint(1, 28)} {rng.choice(_MONTHS)}",
        "price": lambda: f"{rng.randint(5, 999)} euros",
        "address": lambda: f"{rng.randint(1, 99)} {rng.choice(_STREETS)}, {rng.choice(TOPICS[2].values)}",
        "warranty": lambda: f"{rng.randint(2, 60)} months",
        "carrier": lambda: f"{rng.choice(TOPICS[4].values)} {rng.randint(2, 40)}",
    }[topic.field]()


_MONTHS = ("January", "March", "April", "May", "June", "July", "August", "October", "November", "December")
_STREETS = ("Mill Lane", "High Street", "Park Road", "Station Road", "Church Walk", "Quay Street")


def _fact(topic: Topic, orders: list[dict[str, str]], meant: int) -> dict[str, list[str]]:
    """The value asked for, and those that would be wrong in its place, so that naming them all earns nothing."""
    value = orders[meant][topic.field]
    listed = topic.values if value in topic.values else ()
    others = dict.fromkeys([*listed, *(order[topic.field] for order in orders)])
    wrong = [other for other in others if other not in value and value not in other]
    return {"any": _written(topic, value), "none": wrong}


def _written(topic: Topic, value: str) -> list[str]:
    """Ways of writing a value."""
    amount, _, unit = value.partition(" ")
    if topic.field == "price":
        return [value, f"\u20ac{amount}", f"{amount} \u20ac", f"EUR {amount}", f"{amount} EUR", f"{amount} euro"]
    if topic.field == "warranty":
        return [value, f"{amount}-{unit.rstrip('s')}"]
    if topic.field == "arrival" and unit:
        return [value, f"{unit} {amount}"]
    return [value]
