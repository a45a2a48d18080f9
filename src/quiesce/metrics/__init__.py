"""Metrics for Prometheus, from the service's typed events."""

from quiesce.metrics.prometheus import PrometheusMetrics

__all__ = ["PrometheusMetrics"]
