"""The compiler: model → tasks → code → runnable module."""
