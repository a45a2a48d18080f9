"""What the relays tell of themselves, asked of the services' metrics."""

import argparse
import http.client
import urllib.error
import urllib.request
from collections.abc import Iterable
from urllib.parse import urlsplit

from quiesce.outbox.checks import Check
from quiesce.outbox.relay_checks import figures, relay_check

_SECONDS = 5.0
_BYTES = 16 * 1024 * 1024


def metrics_url(text: str) -> str:
    """For a flag: an address whose page has Prometheus metrics."""
    if urlsplit(text).scheme not in ("http", "https") or not urlsplit(text).hostname:
        raise argparse.ArgumentTypeError(f"got {text!r}, takes a URL such as http://host:8080/metrics")
    return text


def relay_checks(urls: Iterable[str]) -> list[Check]:
    """One check a relay. Asks each URL once, within five seconds or so."""
    return [check for url in urls for check in _asked(url)]


def _asked(url: str) -> list[Check]:
    advice = "Takes the page of metrics of a service with PrometheusMetrics, whose port is reached from here"
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:  # noqa: S310 - http or https, see `metrics_url`
            text = answer.read(_BYTES).decode(errors="replace")
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = error.reason if isinstance(error, urllib.error.URLError) else error
        return [Check(f"metrics {url}", "warn", f"no answer: {why}", advice)]
    relays = figures(text)
    if not relays:
        return [Check(f"metrics {url}", "warn", "no relay tells its figures there", advice)]
    return [relay_check(name, told) for name, told in sorted(relays.items())]
