"""Information flow: holds back untrusted text, and checks the sources of a call's arguments."""
