"""The batch APIs of providers: one provider, one file."""
