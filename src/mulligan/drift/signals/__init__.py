"""The signals: each measures one way in which a run goes wrong."""
