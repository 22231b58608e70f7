"""What every request passes through: request log, CORS, errors, authentication, admission."""
