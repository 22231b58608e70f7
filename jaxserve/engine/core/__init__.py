"""The engine process: its loop, the messages it exchanges with clients, beams and grammars."""
