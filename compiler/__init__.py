"""The compiler: model → tasks → code → runnable module."""

COMPILER_VERSION = "0.1.0"
