"""Space: fold old events, collect what nothing refers to, give storage back."""
