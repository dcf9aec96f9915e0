//! `berth` as a user runs it: the program, the real kubectl, files and signals. These tests use a
//! real port and real time on purpose: they test the path over a real network connection.

mod bench;
mod chart;
mod client_streams;
mod clients;
mod cluster;
mod damage;
mod devices;
mod disk;
mod dws;
mod guide;
mod history;
mod image;
mod install;
mod killed_leaders;
mod kubectl;
mod kubeflow;
mod mlbatch;
mod outage;
mod process;
mod processes;
mod programs;
mod ray;
mod ray_samples;
mod refarch;
mod replay;
mod restart;
mod rights;
mod scenarios;
mod skypilot;
mod streams;
mod team;
mod terminal;
mod training;
mod usage;
