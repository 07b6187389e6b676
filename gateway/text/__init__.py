"""Text for every platform: one splitter and the Markdown tree; platforms are limits and dialects as data.

`sanitize` makes any text sendable, `pack` cuts Markdown into a platform's messages with the codec's writer, `split`
and `split_bounded` cut plain text, `parse` returns the tree from which a codec writes its dialect (`write_blocks` and
`write_list` walk it), and `render_plain` writes plain text. `weight` is the cost of parsing a text.
"""

from gateway.text.linked_addresses import Links as Links
from gateway.text.linked_addresses import break_addresses as break_addresses
from gateway.text.linked_addresses import comparable_address as comparable_address
from gateway.text.markdown_blocks import table_lines as table_lines
from gateway.text.markdown_tree import MarkdownNode as MarkdownNode
from gateway.text.markdown_tree import NodeKind as NodeKind
from gateway.text.markdown_tree import find_addresses as find_addresses
from gateway.text.markdown_tree import parse as parse
from gateway.text.markdown_tree import plain_tree as plain_tree
from gateway.text.markdown_tree import prefix_lines as prefix_lines
from gateway.text.markdown_tree import render_plain as render_plain
from gateway.text.markdown_tree import weight as weight
from gateway.text.markdown_tree import write_blocks as write_blocks
from gateway.text.markdown_tree import write_list as write_list
from gateway.text.message_text import LengthUnit as LengthUnit
from gateway.text.message_text import append_commands as append_commands
from gateway.text.message_text import as_one_word as as_one_word
from gateway.text.message_text import button_rows as button_rows
from gateway.text.message_text import find_command as find_command
from gateway.text.message_text import names_other_host as names_other_host
from gateway.text.message_text import sanitize as sanitize
from gateway.text.message_text import width as width
from gateway.text.splitter import PartSplitter as PartSplitter
from gateway.text.splitter import PartWriter as PartWriter
from gateway.text.splitter import WrittenPart as WrittenPart
from gateway.text.splitter import iter_chunks as iter_chunks
from gateway.text.splitter import pack as pack
from gateway.text.splitter import split as split
from gateway.text.splitter import split_bounded as split_bounded
