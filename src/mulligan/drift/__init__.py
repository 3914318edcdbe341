"""Drift: notice in the events of a run that it goes wrong, and decide what to do about it.

``observation`` is what signals see, ``journal`` and ``trace`` make it from events and from recorded
runs; ``signals`` measure, ``detector`` combines and calibrates, ``ladder`` chooses the response and
``handover`` writes what a refreshed agent is told. Nothing here does I/O or reads a clock.
"""
