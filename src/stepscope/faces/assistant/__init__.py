"""The face for coding assistants: a document to paste, and a server of the Model Context Protocol."""
