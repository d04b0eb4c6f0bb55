"""PivotRL and its relatives for the stock verl trainer. This package imports nothing by itself."""

__version__ = "0.1.0"
