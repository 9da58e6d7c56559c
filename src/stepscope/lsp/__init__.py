"""The language server: what each line costs, in any editor that speaks LSP.

background_jobs     one job per key, after a pause; a newer one ends the older
measuring           a job: measure an entry file, from the saved text to its costs
measured_costs      what was measured, by line
text_document       documents with the lines and columns of the LSP specification
line_mapping        where the measured lines are in the current text
documents           the client's open documents, and the latest measurement of each entry file
current_site        where the batch size is in the current text, and the actions there
current_costs, hints, hover, code_actions, diagnostics
                    what an editor shows, each a function of costs and a document
work_progress       the progress of a measurement
language_server     measures in the background and sends the client the results
features            each request of the client
protocol            an answer to every request, also to those that cannot be read
tcp                 the same over a socket, with a token
"""
