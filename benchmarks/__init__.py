"""How much agentrt costs over a loop written by hand; see README.md beside this file."""
