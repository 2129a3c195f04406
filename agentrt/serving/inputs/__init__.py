"""Questions of `UserAgent`s that are answered over HTTP, and logins that end here."""
