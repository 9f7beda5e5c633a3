//! As much of Markdown as the docs use: fenced blocks, links, headings.

use std::fs;
use std::path::{Path, PathBuf};

use crate::program::root;

/// One Markdown file.
pub(crate) struct Page {
    pub(crate) path: PathBuf,
    pub(crate) lines: Vec<String>,
}

/// A fenced block.
pub(crate) struct Block {
    pub(crate) language: String,
    /// The place of its first line within the page.
    pub(crate) first: usize,
    pub(crate) lines: Vec<String>,
}

impl Block {
    pub(crate) fn text(&self) -> String {
        self.lines.join("\n")
    }
}

impl Page {
    /// Every page of the project.
    pub(crate) fn all() -> Vec<Page> {
        let mut paths = markdown_in(&root(), Depth::ThisFolder);
        for folder in ["docs", "bench", "examples"] {
            paths.extend(markdown_in(&root().join(folder), Depth::All));
        }
        paths.sort();
        assert!(paths.len() > 10, "only {} pages were found", paths.len());
        paths.iter().map(|path| Page::read(path)).collect()
    }

    pub(crate) fn read(path: &Path) -> Page {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Page { path: path.to_owned(), lines: text.lines().map(str::to_owned).collect() }
    }

    /// The path as the project calls it.
    pub(crate) fn name(&self) -> String {
        self.path.strip_prefix(root()).unwrap_or(&self.path).display().to_string()
    }

    /// A line, for people.
    pub(crate) fn place(&self, at: usize) -> String {
        format!("{}:{}", self.name(), at + 1)
    }

    pub(crate) fn blocks(&self, language: &str) -> Vec<Block> {
        let mut blocks = self.all_blocks();
        blocks.retain(|block| block.language == language);
        blocks
    }

    pub(crate) fn all_blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut open: Option<Block> = None;
        for (at, line) in self.lines.iter().enumerate() {
            match (line.strip_prefix("```"), &mut open) {
                (Some(language), None) => {
                    open = Some(Block { language: language.to_owned(), first: at + 1, lines: Vec::new() });
                }
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (None, Some(block)) => block.lines.push(line.clone()),
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{}: a block is never closed", self.name());
        blocks
    }

    /// The lines outside blocks.
    fn prose(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut inside = false;
        self.lines.iter().enumerate().filter_map(move |(at, line)| {
            let fence = line.starts_with("```");
            inside ^= fence;
            (!inside && !fence).then_some((at, line.as_str()))
        })
    }

    /// Links to files of the project, with the line they are on.
    pub(crate) fn links(&self) -> Vec<(usize, String)> {
        let targets = self.prose().flat_map(|(at, line)| {
            let ends = line.split("](").skip(1);
            ends.filter_map(move |rest| Some((at, rest.split_once(')')?.0.to_owned())))
        });
        targets.filter(|(_, link)| !link.contains("://")).collect()
    }

    /// What links may name behind `#`.
    pub(crate) fn anchors(&self) -> impl Iterator<Item = String> {
        let headings = self.prose().filter(|(_, line)| line.starts_with('#'));
        headings.map(|(_, line)| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    ThisFolder,
    All,
}

fn markdown_in(folder: &Path, depth: Depth) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())).flatten()
    {
        let path = entry.path();
        if path.is_dir() && depth == Depth::All {
            found.extend(markdown_in(&path, depth));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found
}
